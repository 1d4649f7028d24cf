#include "accelerator/options/resolve_options.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/options/environment_variables.h"
#include "accelerator/options/performance.h"
#include "compat/device.h"
#include "core/files.h"
#include "core/texts.h"

namespace accelerant::detail {
namespace {

constexpr const char* kPrecisionVariable = "ACCELERATE_MIXED_PRECISION";
constexpr const char* kStepsVariable = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
constexpr const char* kCpuVariable = "ACCELERATE_USE_CPU";
constexpr const char* kDeviceVariable = "ACCELERATE_TORCH_DEVICE";

std::optional<Precision> precision_from_environment() {
  const auto value = environment_variable(kPrecisionVariable);
  if (!value) return std::nullopt;
  const std::string name = lower_case(*value);
  if (name == "no") return Precision::no;
  if (name == "fp16") return Precision::fp16;
  if (name == "bf16") return Precision::bf16;
  refuse_variable(kPrecisionVariable, *value, "no, fp16 or bf16");
}

std::optional<int64_t> steps_from_environment() {
  const auto value = environment_variable(kStepsVariable);
  if (!value) return std::nullopt;
  int64_t steps = 0;
  const char* end = value->data() + value->size();
  const auto [stop, code] = std::from_chars(value->data(), end, steps);
  if (code != std::errc() || stop != end || steps < 1) {
    refuse_variable(kStepsVariable, *value, "an integer of at least 1");
  }
  return steps;
}

std::optional<c10::Device> device_from_environment() {
  const auto value = environment_variable(kDeviceVariable);
  if (!value) return std::nullopt;
  try {
    return c10::Device(*value);
  } catch (const c10::Error&) {
    refuse_variable(kDeviceVariable, *value, "a device such as cpu, cuda or cuda:1");
  }
}

c10::Device choose_device(const AcceleratorOptions& options, const dist::Environment& environment) {
  if (*options.cpu) {
    if (options.device && !options.device->is_cpu()) {
      throw Error(ErrorDetails{.problem = "The options contradict each other",
                               .expected = "cpu = true or another device, not both",
                               .got = c10::str("cpu = true and device = ", *options.device)});
    }
    return c10::kCPU;
  }
  std::optional<c10::Device> device = options.device;
  if (!device) device = device_from_environment();
  if (!device) device = compat::is_present(c10::kCUDA) ? c10::Device(c10::kCUDA) : c10::kCPU;
  if (!compat::is_present(device->type())) {
    throw Error(ErrorDetails{.problem = c10::str("The device ", *device, " cannot be used"),
                             .expected = "a device of this machine",
                             .got = "no such device, or a libtorch without support for it",
                             .hint = "omit the device, or use cpu = true"});
  }
  if (!device->is_cpu()) {
    const auto* guard = c10::impl::getDeviceGuardImpl(device->type());
    if (!device->has_index() && environment.use_distributed()) {
      // If there are more processes than GPUs, they share them.
      const auto index =
          environment.local_process_index % std::max<int64_t>(guard->deviceCount(), 1);
      device->set_index(static_cast<c10::DeviceIndex>(index));
    }
    if (!device->has_index()) device->set_index(guard->getDevice().index());
    if (device->index() >= guard->deviceCount()) {
      throw Error(ErrorDetails{.problem = c10::str("The device ", *device, " cannot be used"),
                               .expected = c10::str("an index below ", guard->deviceCount()),
                               .got = c10::str(static_cast<int>(device->index()))});
    }
  }
  return *device;
}

// Whether something is there, or might be where this user cannot look.
bool may_exist(const std::string& path) {
  try {
    return path_exists(path);
  } catch (const SystemError& error) {
    return error.number() != EACCES;  // of the folder above, which is looked at next
  }
}

// Better found out now than after hours, at the first save. A folder that exists and is read-only
// may be meant: a training can resume from it. From one that it cannot look into, it cannot.
void check_project_folder(const std::string& folder) {
  if (folder.empty()) return;
  std::string existing = folder;
  while (!may_exist(existing) && existing != folder_of(existing)) existing = folder_of(existing);
  const bool is_there = is_folder(existing);
  std::string got;
  if (!is_there) {
    got = existing + ", which is not a folder";
  } else if (access(existing.c_str(), R_OK | W_OK | X_OK) != 0) {
    got = existing + ": " + std::strerror(errno);
  } else {
    return;
  }
  const bool can_resume =
      is_there && existing == folder && access(existing.c_str(), R_OK | X_OK) == 0;
  const ErrorDetails details{
      .problem = "project.dir cannot be used to save",
      .expected = "a folder that this user can write to, or create: " + folder,
      .got = got,
      .hint = "set another project.dir, or change the permissions"};
  if (!can_resume) throw Error(details);
  log_on_main(LogLevel::warning, Error(details).what());
}

void resolve_resume(ProjectOptions& project) {
  if (!project.resume) project.resume = project.dir.empty() ? "no" : "restart";
  const std::string& resume = *project.resume;
  if (resume.empty()) {
    throw Error(
        ErrorDetails{.problem = "project.resume is empty",
                     .expected = "\"auto\", \"restart\", \"no\" or the path of a checkpoint",
                     .got = "\"\"",
                     .hint = "leave it out for the default"});
  }
  if ((resume == "auto" || resume == "restart") && project.dir.empty()) {
    throw Error(
        ErrorDetails{.problem = "project.resume = \"" + resume + "\" needs a project folder",
                     .expected = "project.dir",
                     .got = "none",
                     .hint = ".project = {.dir = \"runs/first\", .resume = \"" + resume + "\"}"});
  }
  if (!project.save_on_preemption) {
    project.save_on_preemption = !project.dir.empty() && resume != "no" && resume != "restart";
  }
  if (*project.save_on_preemption && project.dir.empty()) {
    throw Error(ErrorDetails{.problem = "project.save_on_preemption needs a project folder",
                             .expected = "project.dir",
                             .got = "none"});
  }
}

void require_at_least(int64_t least, const std::optional<int64_t>& value, const char* name) {
  if (!value || *value >= least) return;
  throw Error(ErrorDetails{.problem = c10::str("The option ", name, " is out of range"),
                           .expected = c10::str("at least ", least),
                           .got = c10::str(*value)});
}

Nonfinite resolve_nonfinite(const AcceleratorOptions& options) {
  const bool scales_loss = options.scaler.enabled;
  if (scales_loss && options.nonfinite == Nonfinite::step) {
    throw Error(ErrorDetails{
        .problem = "Steps with gradients that are inf or nan cannot be allowed under loss scaling",
        .expected = ".nonfinite = accelerant::Nonfinite::skip or stop, since the loss scale grows "
                    "until gradients overflow",
        .got = "step under fp16",
        .hint = "leave it out, or switch loss scaling off: .scaler = {.enabled = false}"});
  }
  return options.nonfinite.value_or(scales_loss ? Nonfinite::skip : Nonfinite::step);
}

void check_offload(const AcceleratorOptions& options) {
  const OffloadSettings& offload = options.offload;
  const auto require = [](bool holds, const char* option, const char* expected, std::string got,
                          const char* hint) {
    if (holds) return;
    throw Error(ErrorDetails{.problem = c10::str("The option ", option, " cannot be used so"),
                             .expected = expected,
                             .got = std::move(got),
                             .hint = hint});
  };
  require(!offload.optimizer || options.fused, "offload.optimizer", "fused = true", "fused = false",
          "updates of offloaded states are computed by fused kernels");
  require(!options.master_weights || options.fused, "master_weights", "fused = true",
          "fused = false", "master weights are kept by fused kernels");
  require(offload.parameters || !offload.budget, "offload.budget", "offload.parameters = true",
          "false", "the budget is for parameters that are paged");
  if (!offload.update_in_backward) return;
  require(offload.optimizer, "offload.update_in_backward", "offload.optimizer = true", "false",
          "only states in host memory are updated beside backward");
  require(options.nonfinite == Nonfinite::step, "offload.update_in_backward",
          "no loss scaling, and .nonfinite = accelerant::Nonfinite::step",
          options.scaler.enabled ? "loss scaling under fp16" : "nonfinite = skip or stop",
          "whether all gradients are finite is known only after the last one, when others would "
          "already be used");
}

}  // namespace

AcceleratorOptions resolve(AcceleratorOptions options, const dist::Environment& environment) {
  if (!options.cpu) {
    // The environment does not override a device that the program asks for.
    options.cpu = options.device ? false : flag_from_environment(kCpuVariable).value_or(false);
  }
  options.device = choose_device(options, environment);

  if (!options.mixed_precision) options.mixed_precision = precision_from_environment();
  if (!options.mixed_precision) options.mixed_precision = Precision::no;

  auto& steps = options.gradient_accumulation.steps;
  if (!steps) steps = steps_from_environment();
  if (!steps) steps = 1;
  require_at_least(1, steps, "gradient_accumulation.steps");
  require_at_least(0, options.data_loader.workers, "data_loader.workers");
  require_at_least(1, options.data_loader.prefetch, "data_loader.prefetch");

  options.scaler.device = options.device->type();
  options.scaler.enabled = options.scaler.enabled && *options.mixed_precision == Precision::fp16;
  options.nonfinite = resolve_nonfinite(options);
  check_offload(options);
  if (options.project.logging_dir.empty()) options.project.logging_dir = options.project.dir;
  require_at_least(1, options.project.total_limit, "project.total_limit");
  require_at_least(0, options.project.iteration, "project.iteration");
  resolve_resume(options.project);
  check_project_folder(options.project.dir);
  options.performance = resolve(std::move(options.performance), *options.device);
  return options;
}

}  // namespace accelerant::detail
