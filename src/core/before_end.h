// What must not be cut off when an exception that nobody catches ends the process: destructors do not run then.
#pragma once

#include <functional>

namespace accelerant {

// While it lives, `work` is done before such an end, by a handler of std::terminate that then calls the one before it.
// `work` must not throw. Thread-safe.
class BeforeEnd {
 public:
  explicit BeforeEnd(std::function<void()> work);
  ~BeforeEnd();
  BeforeEnd(const BeforeEnd&) = delete;
  BeforeEnd& operator=(const BeforeEnd&) = delete;
};

}  // namespace accelerant
