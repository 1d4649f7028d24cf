#include "summary.h"

#include <cstdarg>
#include <cstdio>

namespace demo {
namespace {

[[gnu::format(printf, 2, 3)]] void add_line(std::string& text, const char* pattern, ...) {
  char line[200];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(line, sizeof line, pattern, arguments);
  va_end(arguments);
  text += line;
  text += '\n';
}

}  // namespace

std::string summary(const Options& options, torch::Device device, const TrainingResult& training,
                    const std::optional<SpeedComparison>& speed) {
  const char* precision = name_of(options.precision);
  std::string text;
  add_line(text, "test accuracy   %.2f %%", 100 * training.test_accuracy);
  add_line(text, "training        %.1f s, %.0f samples/s", training.seconds,
           static_cast<double>(training.samples) / training.seconds);
  if (options.precision == Precision::fp16) {
    add_line(text, "skipped steps   %ld of %ld", training.skipped_steps, training.steps);
    add_line(text, "final scale     %.0f", training.final_scale);
  } else {
    add_line(text, "loss scaling    not needed in %s", precision);
  }
  if (!speed) return text;

  add_line(text, "%s vs fp32    %.2fx (%.0f and %.0f samples/s)", precision, speed->ratio(),
           speed->samples_per_second, speed->fp32_samples_per_second);
  if (speed->ratio() < 1 && device.is_cpu() && options.precision == Precision::fp16) {
    text +=
        "                Only GPUs and CPUs with fp16 instructions (AVX512-FP16, AMX-FP16) are\n"
        "                faster in fp16. CPUs more often have bf16: try --precision bf16.\n";
  }
  return text;
}

}  // namespace demo
