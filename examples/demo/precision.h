// The number formats the demo can train in.
#pragma once

namespace demo {

enum class Precision { fp16, bf16, fp32 };

inline const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp16:
      return "fp16";
    case Precision::bf16:
      return "bf16";
    case Precision::fp32:
      return "fp32";
  }
  return "?";
}

}  // namespace demo
