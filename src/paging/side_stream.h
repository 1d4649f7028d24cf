// The Pager's own stream, on which units come and go while operators run on other streams. On the
// CPU there are no streams: everything here does nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <optional>

namespace accelerant::paging {

class SideStream {
 public:
  // Not the CPU: takes a stream of the device's pool.
  explicit SideStream(c10::Device device);

  bool exists() const { return stream_.has_value(); }

  // The stream on which this thread's operators run. Only if the side stream exists.
  c10::Stream current() const;

  // Whether this thread is recording a CUDA graph.
  bool is_capturing() const;

  // What comes on the side stream waits for what is queued on `stream` now.
  void wait_for(const c10::Stream& stream);

  // A mark behind everything that is queued on the side stream now.
  void mark(std::optional<c10::Event>& event) const;

  // Waits until everything that is queued on the side stream is done.
  void synchronize() const;

  // Makes the side stream current in this scope.
  class Scope {
   public:
    explicit Scope(const SideStream& side) {
      if (side.stream_) guard_.emplace(*side.stream_);
    }

   private:
    std::optional<c10::StreamGuard> guard_;
  };

 private:
  c10::Device device_;
  std::optional<c10::Stream> stream_;
};

}  // namespace accelerant::paging
