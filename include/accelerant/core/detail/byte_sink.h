// Where the writer of a file format puts its bytes: a file, memory, a checksum.
//
//   class StringSink : public accelerant::format::ByteSink {
//    public:
//     void write(std::span<const std::byte> bytes) override {
//       text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
//     }
//     std::string text;
//   };
//
// A writer borrows the sink for one call and gives it the bytes in order, in pieces of any size. A
// sink that cannot continue throws; the exception passes through the writer.
#pragma once

#include <cstddef>
#include <span>

namespace accelerant::format {

class ByteSink {
 public:
  virtual ~ByteSink() = default;

  // Takes all of the bytes. They are valid only during the call.
  virtual void write(std::span<const std::byte> bytes) = 0;

 protected:
  ByteSink() = default;
  ByteSink(const ByteSink&) = default;
  ByteSink& operator=(const ByteSink&) = default;
};

}  // namespace accelerant::format
