#include "accelerant/accelerator/capture.h"
#include "accelerator/capture/engine.h"

namespace accelerant::detail {

CapturedStepBase::CapturedStepBase(const std::shared_ptr<Core>& core, const CaptureOptions& options)
    : engine_(new CaptureEngine(core, options)) {}

CapturedStepBase::~CapturedStepBase() = default;
CapturedStepBase::CapturedStepBase(CapturedStepBase&&) noexcept = default;
CapturedStepBase& CapturedStepBase::operator=(CapturedStepBase&&) noexcept = default;

StepOutputs CapturedStepBase::run(std::vector<at::Tensor> inputs, const StepBody& body) {
  return engine_->run(std::move(inputs), body);
}

bool CapturedStepBase::is_captured() const { return engine_->is_replay(); }
const std::string& CapturedStepBase::why_not() const { return engine_->why_not(); }
int64_t CapturedStepBase::graphs() const { return engine_->graphs(); }

}  // namespace accelerant::detail
