#include "accelerant/data/loader_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "data/loader_checks.h"
#include "data/torch_random.h"

namespace accelerant::data {

using nlohmann::json;

LoaderState::LoaderState(const LoaderOptions& options, const Placement& placement, SourceKind kind,
                         std::optional<int64_t> dataset_length)
    : options_(options),
      sharding_{.batch_size = options.batch_size,
                .drop_last = options.drop_last,
                .num_processes = placement.num_processes,
                .rank = placement.rank,
                .split_batches = placement.split_batches,
                // One process has nobody to keep in step with, so its last batch stays short.
                .even_batches = placement.even_batches && placement.num_processes > 1},
      kind_(kind),
      may_repeat_(options.sampler != nullptr || options.batch_sampler != nullptr),
      dataset_length_(dataset_length),
      seed_(placement.seed ? placement.seed : options.seed) {
  check_options(options, placement, kind, dataset_length);
  const bool varying = options.batch_sampler != nullptr || kind == SourceKind::batch_stream;
  total_batch_size_ =
      varying ? 0 : options.batch_size * (placement.split_batches ? 1 : placement.num_processes);
  if (kind != SourceKind::indexed) return;
  if (!options_.sampler && !options_.batch_sampler) {
    if (options.shuffle) {
      options_.sampler = std::make_shared<RandomSampler>(*dataset_length);
    } else {
      options_.sampler = std::make_shared<SequentialSampler>(*dataset_length);
    }
  }
  // Settings that cannot be shared out between processes should be refused here, not in the loop.
  if (!varying) Sharding(options_.sampler->size(), sharding_);
}

void LoaderState::start_like(const LoaderState& other) {
  next_epoch_ = other.epoch();
  next_start_ = other.active_ ? other.position_ : other.next_position();
  if (!seed_ && other.seed_) seed_ = other.seed_;
}

uint64_t LoaderState::seed() const {
  if (!seed_) seed_ = torch_seed();
  return *seed_;
}

// --- Plans ----------------------------------------------------------------------------------------

Sharding LoaderState::make_sharding(int64_t epoch, int64_t start) const {
  if (!options_.batch_sampler) return Sharding(options_.sampler->size(), sharding_, start);
  std::vector<int64_t> lengths;
  for (const auto& batch : options_.batch_sampler->batches(seed(), epoch)) {
    lengths.push_back(static_cast<int64_t>(batch.size()));
  }
  return Sharding(lengths, sharding_, start);
}

EpochPlan LoaderState::make_plan(int64_t epoch, int64_t start) const {
  if (options_.batch_sampler) {
    std::vector<int64_t> order;
    std::vector<int64_t> lengths;
    for (const auto& batch : options_.batch_sampler->batches(seed(), epoch)) {
      lengths.push_back(static_cast<int64_t>(batch.size()));
      order.insert(order.end(), batch.begin(), batch.end());
    }
    check_order(order, *dataset_length_);
    return EpochPlan(std::move(order), Sharding(lengths, sharding_, start), may_repeat_);
  }
  std::vector<int64_t> order = options_.sampler->order(seed(), epoch);
  check_order_length(order, options_.sampler->size());
  check_order(order, *dataset_length_);
  return EpochPlan(std::move(order), make_sharding(epoch, start), may_repeat_);
}

int64_t LoaderState::next_position() const {
  if (next_skip_ == 0) return next_start_;
  if (is_stream()) return next_start_ + next_skip_ * options_.batch_size;
  return make_sharding(next_epoch_, next_start_).position_before(next_skip_);
}

// --- Questions ------------------------------------------------------------------------------------

std::optional<int64_t> LoaderState::batches_left() const {
  if (is_stream()) {
    if (active_ && last_) return 1;
    if (!dataset_length_) return std::nullopt;
    if (!active_) return stream_batches(*dataset_length_ - next_position());
    const int64_t left = stream_batches(*dataset_length_ - (position_ - current_units_));
    return std::max<int64_t>(left, delivered_ > 0 ? 1 : 0);
  }
  if (active_) return plan_->steps() - delivered_ + (delivered_ > 0 ? 1 : 0);
  const int64_t steps = make_sharding(next_epoch_, next_start_).steps();
  return std::max<int64_t>(steps - next_skip_, 0);
}

int64_t LoaderState::remainder() const {
  if (is_stream()) {
    const bool known = kind_ == SourceKind::stream && dataset_length_ && !options_.drop_last;
    if (!known) return 0;
    const int64_t start = active_ ? start_ : next_position();
    return std::max<int64_t>(*dataset_length_ - start, 0) % options_.batch_size;
  }
  return active_ ? plan_->remainder() : make_sharding(next_epoch_, next_start_).remainder();
}

std::optional<int64_t> LoaderState::length() const {
  if (!is_stream()) return make_sharding(epoch(), 0).steps();
  if (!dataset_length_) return std::nullopt;
  return stream_batches(*dataset_length_);
}

int64_t LoaderState::stream_batches(int64_t samples) const {
  const int64_t left = std::max<int64_t>(samples, 0);
  const bool short_one = !options_.drop_last && left % options_.batch_size != 0;
  return left / options_.batch_size + (short_one ? 1 : 0);
}

int64_t LoaderState::position() const { return active_ ? position_ : next_position(); }

// --- Changes --------------------------------------------------------------------------------------

void LoaderState::set_epoch(int64_t epoch) {
  if (epoch < 0) {
    throw Error(ErrorDetails{.problem = "An epoch cannot be negative",
                             .expected = "0 or more",
                             .got = std::to_string(epoch)});
  }
  next_epoch_ = epoch;
  next_start_ = 0;
  next_skip_ = 0;
  decided_ = active_;
}

void LoaderState::skip_first_batches(int64_t n) {
  if (n < 0) {
    throw Error(ErrorDetails{.problem = "skip_first_batches cannot go back",
                             .expected = "0 or more",
                             .got = std::to_string(n)});
  }
  next_skip_ = n;
}

json LoaderState::state_dict() const {
  // Inside of a loop it is the loop that is saved, unless its successor has been decided already.
  const bool running = active_ && !decided_;
  json state = {{"seed", seed()},
                {"epoch", running ? current_epoch_ : next_epoch_},
                {"position", running ? position_ : next_position()}};
  if (dataset_length_) state["dataset_length"] = *dataset_length_;
  return state;
}

void LoaderState::load_state_dict(const json& state) {
  const LoaderPosition loaded = read_state(state, dataset_length_);
  if (!is_stream() && !options_.batch_sampler && loaded.position > options_.sampler->size()) {
    throw Error(ErrorDetails{
        .problem = "The state of a loader lies behind the end of the epoch",
        .expected = "a position of at most " + std::to_string(options_.sampler->size()),
        .got = std::to_string(loaded.position)});
  }
  seed_ = loaded.seed;
  next_epoch_ = loaded.epoch;
  next_start_ = loaded.position;
  next_skip_ = 0;
  decided_ = active_;
}

// --- The loop -------------------------------------------------------------------------------------

void LoaderState::begin_loop() {
  if (active_) {
    throw Error(ErrorDetails{.problem = "Two loops over one loader at once",
                             .expected = "one loop at a time",
                             .got = "a second one inside of the first",
                             .hint = "make a second loader, or end the first loop (its iterator "
                                     "must be gone)"});
  }
  if (dataset_length_ == 0) log(LogLevel::warning, "A loop over a loader of an empty data set");
  const int64_t start = next_position();
  if (!is_stream()) plan_ = make_plan(next_epoch_, start);
  current_epoch_ = next_epoch_;
  start_ = position_ = start;
  current_samples_ = current_units_ = delivered_ = 0;
  last_ = decided_ = false;
  next_skip_ = 0;
  active_ = true;
}

void LoaderState::deliver(int64_t stream_units, int64_t stream_samples, bool last_of_stream) {
  if (is_stream()) {
    current_units_ = stream_units;
    current_samples_ = stream_samples;
    position_ += stream_units;
    last_ = last_of_stream;
  } else {
    current_samples_ = plan_->samples(delivered_);
    position_ = plan_->position_before(delivered_ + 1);
    last_ = delivered_ + 1 == plan_->steps();
  }
  ++delivered_;
}

void LoaderState::end_loop(bool failed) {
  active_ = false;
  plan_.reset();
  if (decided_) return;
  if (failed && delivered_ == 0) {  // it has not begun: the next loop is the same one again
    next_epoch_ = current_epoch_;
    next_start_ = start_;
    return;
  }
  next_epoch_ = current_epoch_ + 1;
  next_start_ = 0;
}

// --- The handle -----------------------------------------------------------------------------------

LoaderHandle::LoaderHandle(std::shared_ptr<LoaderState> state) : state_(std::move(state)) {}

void LoaderHandle::refuse_empty() {
  throw Error(ErrorDetails{.problem = "An empty Loader was used",
                           .expected = "one made by data::loader or returned by prepare()",
                           .got = "a default-constructed or emptied handle"});
}

json LoaderHandle::state_dict() const { return state()->state_dict(); }

void LoaderHandle::load_state_dict(const json& saved) const { state()->load_state_dict(saved); }

}  // namespace accelerant::data
