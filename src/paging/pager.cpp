#include "paging/pager.h"

#include "paging/engine.h"

namespace accelerant::paging {

Pager::Pager(std::vector<UnitPlan> units, const PagerOptions& options)
    : engine_(accelerant::detail::make_shared_for_process<Engine>(units, options)) {}

Pager::~Pager() = default;

Pager::Iteration::~Iteration() {
  if (!process_.is_this_one()) return;
  if (const std::shared_ptr<Engine> engine = engine_.lock()) engine->end();
}

Pager::Iteration Pager::begin(std::string_view phase) {
  engine_->begin(phase);
  return Iteration(engine_);
}

void Pager::detach(std::optional<c10::Device> device) { engine_->detach(device); }
void Pager::verify() const { engine_->verify(); }
void Pager::evict_all() { engine_->evict_all(); }
PagerStatistics Pager::statistics() const { return engine_->statistics(); }
void Pager::reset_statistics() { engine_->reset_statistics(); }
const std::vector<UnitLayout>& Pager::layouts() const { return engine_->layouts(); }
const PagerOptions& Pager::options() const { return engine_->options(); }

std::optional<std::size_t> Pager::unit_of(const at::Tensor& parameter) const {
  return engine_->unit_of(parameter);
}

}  // namespace accelerant::paging
