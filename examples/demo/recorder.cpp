#include "recorder.h"

#include <unistd.h>

#include <bit>
#include <cstdio>

namespace demo {
namespace {

constexpr std::size_t losses_in_a_line = 10;

void write_line(const std::string& content) {
  std::printf("%s%s%s\n", line_begin.c_str(), content.c_str(), line_end.c_str());
  std::fflush(stdout);
}

}  // namespace

void Recorder::start(int64_t updates_done) {
  first_ = updates_done;
  write_line("start " + std::to_string(updates_done) + " " + std::to_string(getpid()));
}

void Recorder::add(const torch::Tensor& loss) {
  losses_.push_back(loss.detach());
  if (losses_.size() == losses_in_a_line) flush();
}

void Recorder::stop() {
  if (!losses_.empty()) flush();
  write_line("stop");
}

void Recorder::accuracy(double accuracy) { write_line("accuracy " + std::to_string(accuracy)); }

void Recorder::flush() {
  const auto values = torch::stack(losses_).to(torch::kCPU, torch::kFloat).contiguous();
  std::string line = "losses " + std::to_string(first_);
  for (int64_t i = 0; i < values.numel(); ++i) {
    char bits[16];  // not decimals: what is compared later is every bit
    std::snprintf(bits, sizeof bits, " %08x", std::bit_cast<uint32_t>(values.data_ptr<float>()[i]));
    line += bits;
  }
  write_line(line);
  first_ += values.numel();
  losses_.clear();
}

}  // namespace demo
