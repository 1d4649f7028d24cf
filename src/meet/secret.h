// The secret of a run. Whoever wants to take part in the run proves that he knows it.
//
// It is never an argument, a variable or a message: processes get it from a file that only their
// user can read, named by ACCELERANT_SECRET_FILE (core/launch_contract.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace accelerant::meet {

// A cheap value; copies share the bytes, which are in no core dump and are wiped in the end.
class Secret {
 public:
  // 32 random bytes.
  static Secret random();

  // The content of a file, 32 to 4096 bytes. Throws Error unless it is a regular file that belongs
  // to this user and that nobody else can read or write.
  static Secret read(const std::string& path);

  // Creates the file, readable for this user only. Throws Error if it exists.
  void write(const std::string& path) const;

  std::span<const std::byte> bytes() const;

 private:
  class Page;
  explicit Secret(std::shared_ptr<const Page> page) : page_(std::move(page)) {}

  std::shared_ptr<const Page> page_;
};

}  // namespace accelerant::meet
