// Fast algorithms for a step that is captured.
#pragma once

namespace accelerant::detail {

// While it lives, cuDNN times its algorithms for each new shape and remembers the fastest, unless
// the program wants deterministic ones. What is remembered serves later calls with that shape too,
// so a capture gets it without a search.
class CudnnSearch {
 public:
  explicit CudnnSearch(bool on);
  ~CudnnSearch();
  CudnnSearch(const CudnnSearch&) = delete;
  CudnnSearch& operator=(const CudnnSearch&) = delete;

 private:
  bool is_on_ = false;
};

}  // namespace accelerant::detail
