// The arithmetic of optimizers for one element, shared by the CPU loops and the CUDA kernels.
// Includes no torch headers.
//
// Everything used in loops is always inlined: the CPU loops are compiled once for each instruction
// set, and the linker must not pick one copy of a function for all of them.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define ACCELERANT_KERNEL_INLINE __host__ __device__ __forceinline__
#define ACCELERANT_KERNEL_FUNCTION __host__ __device__ inline
#else
#define ACCELERANT_KERNEL_INLINE inline __attribute__((always_inline))
#define ACCELERANT_KERNEL_FUNCTION inline
#endif

namespace accelerant::kernels {

// What happens to an element. Options that change which tensors are involved are separate rules, so
// the loops have no branches.
enum class Rule : std::uint8_t {
  sgd,
  sgd_momentum,
  sgd_nesterov,
  adam,
  adam_amsgrad,
  adamw,
  adamw_amsgrad,
  adagrad,
  rmsprop,
  rmsprop_momentum,
  rmsprop_centered,
  rmsprop_centered_momentum,
  lion,
};
inline constexpr int kRules = 13;
inline constexpr int kMostStates = 3;

// The options of a param group. Each rule uses some of them.
struct Hyper {
  double lr;
  double beta1;
  double beta2;  // the alpha of RMSprop
  double eps;
  double weight_decay;
  double momentum;
  double dampening;
  double lr_decay;
};

// What a loop needs, computed from the options and the step count of a tensor.
template <class T>
struct Scalars {
  T gradient;      // the factor of the gradient
  T weight_decay;  // added to the gradient, or (times lr) subtracted from the parameter
  T keep1, take1;  // the first average: keep * old + take * new
  T keep2, take2;
  T eps;
  T root;       // divides the square root of the second average
  T step_size;  // lr with bias correction
};

ACCELERANT_KERNEL_FUNCTION constexpr bool is_adam(Rule rule) {
  return rule >= Rule::adam && rule <= Rule::adamw_amsgrad;
}
ACCELERANT_KERNEL_FUNCTION constexpr bool is_adamw(Rule rule) {
  return rule == Rule::adamw || rule == Rule::adamw_amsgrad;
}
ACCELERANT_KERNEL_FUNCTION constexpr bool is_amsgrad(Rule rule) {
  return rule == Rule::adam_amsgrad || rule == Rule::adamw_amsgrad;
}
ACCELERANT_KERNEL_FUNCTION constexpr bool is_rmsprop(Rule rule) {
  return rule >= Rule::rmsprop && rule <= Rule::rmsprop_centered_momentum;
}
ACCELERANT_KERNEL_FUNCTION constexpr bool is_centered(Rule rule) {
  return rule == Rule::rmsprop_centered || rule == Rule::rmsprop_centered_momentum;
}
ACCELERANT_KERNEL_FUNCTION constexpr bool has_momentum(Rule rule) {
  return rule == Rule::rmsprop_momentum || rule == Rule::rmsprop_centered_momentum ||
         rule == Rule::sgd_momentum || rule == Rule::sgd_nesterov;
}

// The state tensors of a parameter, in this order:
//   SGD      momentum_buffer
//   Adam(W)  exp_avg, exp_avg_sq, max_exp_avg_sq
//   Adagrad  sum
//   RMSprop  square_avg, then momentum_buffer and grad_avg if used
//   Lion     exp_avg
ACCELERANT_KERNEL_FUNCTION constexpr int states_of(Rule rule) {
  if (rule == Rule::sgd) return 0;
  if (is_adam(rule)) return is_amsgrad(rule) ? 3 : 2;
  if (is_rmsprop(rule)) return 1 + (has_momentum(rule) ? 1 : 0) + (is_centered(rule) ? 1 : 0);
  return 1;
}

// `steps` is the number of updates so far.
template <class T>
ACCELERANT_KERNEL_FUNCTION Scalars<T> scalars_of(Rule rule, const Hyper& hyper, std::int64_t steps,
                                                 double gradient) {
  Scalars<T> made{};
  made.gradient = static_cast<T>(gradient);
  made.eps = static_cast<T>(hyper.eps);
  made.weight_decay = static_cast<T>(hyper.weight_decay);
  made.step_size = static_cast<T>(hyper.lr);
  if (is_adam(rule)) {
    const double count = static_cast<double>(steps + 1);
    made.keep1 = static_cast<T>(hyper.beta1);
    made.take1 = static_cast<T>(1.0 - hyper.beta1);
    made.keep2 = static_cast<T>(hyper.beta2);
    made.take2 = static_cast<T>(1.0 - hyper.beta2);
    made.root = static_cast<T>(sqrt(1.0 - pow(hyper.beta2, count)));
    made.step_size = static_cast<T>(hyper.lr / (1.0 - pow(hyper.beta1, count)));
    if (is_adamw(rule)) made.weight_decay = static_cast<T>(hyper.lr * hyper.weight_decay);
  } else if (rule == Rule::adagrad) {
    made.step_size = static_cast<T>(hyper.lr / (1.0 + static_cast<double>(steps) * hyper.lr_decay));
  } else if (is_rmsprop(rule)) {
    made.keep1 = static_cast<T>(hyper.momentum);
    made.keep2 = static_cast<T>(hyper.beta2);
    made.take2 = static_cast<T>(1.0 - hyper.beta2);
  } else if (rule == Rule::lion) {
    made.keep1 = static_cast<T>(hyper.beta1);
    made.take1 = static_cast<T>(1.0 - hyper.beta1);
    made.keep2 = static_cast<T>(hyper.beta2);
    made.take2 = static_cast<T>(1.0 - hyper.beta2);
    made.weight_decay = static_cast<T>(hyper.lr * hyper.weight_decay);
  } else if (rule != Rule::sgd) {
    // The buffer starts as the first gradient itself, whatever the dampening.
    const bool first = steps == 0;
    made.keep1 = static_cast<T>(first ? 0.0 : hyper.momentum);
    made.take1 = static_cast<T>(first ? 1.0 : 1.0 - hyper.dampening);
    made.keep2 = static_cast<T>(hyper.momentum);  // for Nesterov's look-ahead
  }
  return made;
}

ACCELERANT_KERNEL_INLINE float square_root(float value) {
#if defined(__CUDA_ARCH__)
  return sqrtf(value);
#else
  return __builtin_sqrtf(value);
#endif
}
ACCELERANT_KERNEL_INLINE double square_root(double value) {
#if defined(__CUDA_ARCH__)
  return sqrt(value);
#else
  return __builtin_sqrt(value);
#endif
}

// Updates one element: replaces `parameter` and the states by their values after the step.
template <Rule rule, class T>
ACCELERANT_KERNEL_INLINE void update_element(const Scalars<T>& scalars, T gradient, T& parameter,
                                             T& first, T& second, T& third) {
  T g = gradient * scalars.gradient;
  constexpr bool decoupled = is_adamw(rule) || rule == Rule::lion;
  if constexpr (decoupled) {
    parameter =
        scalars.weight_decay != T(0) ? parameter - scalars.weight_decay * parameter : parameter;
  } else {
    g = scalars.weight_decay != T(0) ? g + scalars.weight_decay * parameter : g;
  }
  if constexpr (rule == Rule::sgd) {
    parameter -= scalars.step_size * g;
  } else if constexpr (rule == Rule::sgd_momentum || rule == Rule::sgd_nesterov) {
    first = scalars.keep1 * first + scalars.take1 * g;
    const T direction = rule == Rule::sgd_nesterov ? g + scalars.keep2 * first : first;
    parameter -= scalars.step_size * direction;
  } else if constexpr (is_adam(rule)) {
    first = scalars.keep1 * first + scalars.take1 * g;
    second = scalars.keep2 * second + scalars.take2 * g * g;
    T variance = second;
    if constexpr (is_amsgrad(rule)) {
      third = third < second ? second : third;
      variance = third;
    }
    parameter -= scalars.step_size * first / (square_root(variance) / scalars.root + scalars.eps);
  } else if constexpr (rule == Rule::adagrad) {
    first = first + g * g;
    parameter -= scalars.step_size * g / (square_root(first) + scalars.eps);
  } else if constexpr (is_rmsprop(rule)) {
    first = scalars.keep2 * first + scalars.take2 * g * g;
    T variance = first;
    if constexpr (is_centered(rule)) {
      T& mean = has_momentum(rule) ? third : second;
      mean = scalars.keep2 * mean + scalars.take2 * g;
      variance = first - mean * mean;
    }
    const T direction = g / (square_root(variance) + scalars.eps);
    if constexpr (has_momentum(rule)) {
      second = scalars.keep1 * second + direction;
      parameter -= scalars.step_size * second;
    } else {
      parameter -= scalars.step_size * direction;
    }
  } else {
    static_assert(rule == Rule::lion);
    const T mixed = scalars.keep1 * first + scalars.take1 * g;
    const T sign = mixed > T(0) ? T(1) : (mixed < T(0) ? T(-1) : T(0));
    parameter -= scalars.step_size * sign;
    first = scalars.keep2 * first + scalars.take2 * g;
  }
}

}  // namespace accelerant::kernels
