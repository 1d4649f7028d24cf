// How a training tells the demo that started it how far it is: lines on standard output, which
// reach the demo through `accelerant launch`, too. run_log.h reads them.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace demo {

// Every line begins with this word and ends with another, so that one cut short is noticed.
inline const std::string line_begin = "@demo ";
inline const std::string line_end = " ;";

class Recorder {
 public:
  // The training starts, or goes on after so many updates.
  void start(int64_t updates_done);

  // The loss of the next update. Losses stay on the device until some of them are written.
  void add(const torch::Tensor& loss);

  // The last update is done. Waits for the device.
  void stop();

  // 0 to 1, on the test set.
  static void accuracy(double accuracy);

 private:
  void flush();

  int64_t first_ = 0;  // the number of the first loss that is not written yet
  std::vector<torch::Tensor> losses_;
};

}  // namespace demo
