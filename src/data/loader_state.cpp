#include "accelerant/data/detail/loader_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/data/detail/batch_channel.h"
#include "accelerant/data/detail/source.h"
#include "data/loader_checks.h"
#include "data/torch_random.h"

namespace accelerant::data {

using nlohmann::json;

namespace {

bool reads_on_rank_0(const Placement& placement, const SourceTraits& traits) {
  return placement.num_processes > 1 &&
         placement.dispatch_batches.value_or(traits.read_by_one_process);
}

}  // namespace

LoaderState::LoaderState(const LoaderOptions& options, const Placement& placement,
                         const SourceTraits& traits)
    : options_(options),
      sharding_{.batch_size = options.batch_size,
                .drop_last = options.drop_last,
                .num_processes = placement.num_processes,
                .rank = placement.rank,
                .split_batches = placement.split_batches,
                // A single process need not keep in step with others, so its last batch stays
                // short.
                .even_batches = placement.even_batches && placement.num_processes > 1},
      kind_(traits.kind),
      shards_itself_(traits.shards_itself && placement.num_processes > 1 &&
                     !reads_on_rank_0(placement, traits)),
      dispatched_(reads_on_rank_0(placement, traits)),
      channel_(placement.channel),
      channel_line_(placement.channel_line),
      may_repeat_(options.sampler != nullptr || options.batch_sampler != nullptr),
      // The size of one part does not determine that of the others.
      dataset_length_(shards_itself_ ? std::nullopt : traits.size),
      seed_(placement.seed ? placement.seed : options.seed) {
  check_options(options, placement, traits);
  if (dispatched_) check_channel(placement);
  const bool varying = options.batch_sampler != nullptr || kind_ == SourceKind::batch_stream;
  total_batch_size_ =
      varying ? 0 : options.batch_size * (placement.split_batches ? 1 : placement.num_processes);
  if (!is_stream() && !options_.sampler && !options_.batch_sampler) {
    if (options.shuffle) {
      options_.sampler = std::make_shared<RandomSampler>(*dataset_length_);
    } else {
      options_.sampler = std::make_shared<SequentialSampler>(*dataset_length_);
    }
  }
  // Refuse settings that cannot be divided between processes here, not in the loop.
  if (!options_.batch_sampler) Sharding(0, sharding_);
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

// --- Plans ---------------------------------------------------------------------------------------

std::optional<Sharding> LoaderState::make_sharding(int64_t epoch, int64_t start) const {
  if (is_stream()) {
    if (!dataset_length_) return std::nullopt;
    const int64_t length = std::max<int64_t>(*dataset_length_, 0);
    return Sharding(length, sharding_, std::min(start, length));
  }
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
  return EpochPlan(std::move(order), Sharding(options_.sampler->size(), sharding_, start),
                   may_repeat_);
}

int64_t LoaderState::full_step() const {
  return kind_ == SourceKind::batch_stream ? sharding_.num_processes : total_batch_size_;
}

int64_t LoaderState::next_position() const {
  if (next_skip_ == 0) return next_start_;
  if (is_stream()) return next_start_ + next_skip_ * full_step();
  return make_sharding(next_epoch_, next_start_)->position_before(next_skip_);
}

// --- Questions -----------------------------------------------------------------------------------

std::optional<int64_t> LoaderState::batches_left() const {
  if (active_ && last_) return 1;
  if (!active_) {
    const auto shares = make_sharding(next_epoch_, next_start_);
    if (!shares) return std::nullopt;
    return std::max<int64_t>(shares->steps() - next_skip_, 0);
  }
  if (!shares_) return std::nullopt;
  const int64_t current = delivered_ > 0 ? 1 : 0;
  return std::max(shares_->steps() - delivered_ + current, current);
}

int64_t LoaderState::current_rows() const {
  if (!active_ || delivered_ == 0) return 0;
  if (counts_as_it_goes()) return current_rows_;
  return static_cast<int64_t>(plan_->indices(delivered_ - 1).size());
}

bool LoaderState::all_have_batch() const {
  if (!active_ || !shares_ || counts_as_it_goes()) return true;
  return shares_->for_rank(sharding_.num_processes - 1).steps() >= delivered_;
}

int64_t LoaderState::remainder() const {
  if (kind_ != SourceKind::batch_stream && dataset_length_) {
    return active_ ? shares_->remainder()
                   : make_sharding(next_epoch_, next_position())->remainder();
  }
  // Unknown before the last batch arrives. A stream that shards itself has no padding.
  const bool is_short = active_ && last_ && current_units_ < full_step() && !shards_itself_;
  return is_short ? current_samples_ : 0;
}

std::optional<int64_t> LoaderState::length() const {
  const auto shares = make_sharding(epoch(), 0);
  return shares ? std::optional(shares->steps()) : std::nullopt;
}

int64_t LoaderState::position() const { return active_ ? position_ : next_position(); }

// --- Changes -------------------------------------------------------------------------------------

void LoaderState::set_epoch(int64_t epoch) {
  if (epoch < 0) {
    throw Error(ErrorDetails{.problem = "An epoch cannot be negative",
                             .expected = "0 or more",
                             .got = std::to_string(epoch)});
  }
  next_epoch_ = epoch;
  next_start_ = 0;
  next_skip_ = 0;
  next_is_skipped_ = false;
  decided_ = active_;
}

void LoaderState::skip_first_batches(int64_t n) {
  if (n < 0) {
    throw Error(ErrorDetails{.problem = "skip_first_batches got a negative number",
                             .expected = "0 or more",
                             .got = std::to_string(n)});
  }
  next_skip_ = n;
}

json LoaderState::state_dict() const {
  // Inside a loop, save that loop, unless the next one has already been decided.
  const bool running = active_ && !decided_;
  json state = {{"seed", seed()},
                {"epoch", running ? current_epoch_ : next_epoch_},
                {"position", running ? position_ : next_position()}};
  if (dataset_length_) state["dataset_length"] = *dataset_length_;
  if (shards_itself_) state["num_processes"] = sharding_.num_processes;
  return state;
}

void LoaderState::load_state_dict(const json& state) {
  const LoaderPosition loaded = read_state(state, dataset_length_);
  if (shards_itself_) check_same_parts(state, loaded, sharding_.num_processes);
  if (!is_stream() && !options_.batch_sampler && loaded.position > options_.sampler->size()) {
    throw Error(ErrorDetails{
        .problem = "The state of a loader is beyond the end of the epoch",
        .expected = "a position of at most " + std::to_string(options_.sampler->size()),
        .got = std::to_string(loaded.position)});
  }
  seed_ = loaded.seed;
  next_epoch_ = loaded.epoch;
  next_start_ = loaded.position;
  next_skip_ = 0;
  next_is_skipped_ = false;
  decided_ = active_;
}

// --- The loop ------------------------------------------------------------------------------------

void LoaderState::begin_loop() {
  if (active_) {
    throw Error(ErrorDetails{.problem = "Two loops over one loader at once",
                             .expected = "one loop at a time",
                             .got = "a second loop inside the first",
                             .hint = "make a second loader, or end the first loop (destroy all "
                                     "copies of its iterator)"});
  }
  skipped_ = std::exchange(next_is_skipped_, false);
  if (skipped_) {
    current_epoch_ = std::max<int64_t>(next_epoch_ - 1, 0);
    current_samples_ = current_rows_ = current_units_ = delivered_ = 0;
    last_ = false;
    decided_ = true;  // the next loop is the one that would have run without the skipped one
    ++loops_;
    active_ = true;
    return;
  }
  if (dataset_length_ == 0)
    log(LogLevel::warning, "The loop is empty: the data set of its loader has no samples");
  const int64_t start = next_position();
  if (is_stream() || dispatched_) {
    shares_ = make_sharding(next_epoch_, start);
  } else {
    plan_ = make_plan(next_epoch_, start);
    shares_ = plan_->sharding();
  }
  current_epoch_ = next_epoch_;
  start_ = position_ = start;
  current_samples_ = current_rows_ = current_units_ = delivered_ = 0;
  last_ = decided_ = false;
  next_skip_ = 0;
  ++loops_;
  active_ = true;
}

detail::EpochRequest LoaderState::request(bool parallel) {
  // Rank 0 makes the plan only here, where the failure of a sampler is reported to all processes.
  if (!is_stream() && !plan_) plan_ = make_plan(current_epoch_, start_);
  return {.plan = plan_,
          .sharding = sharding_,
          .start = start_,
          .seed = seed(),
          .epoch = current_epoch_,
          .parallel = parallel,
          .for_all_ranks = dispatched_};
}

std::shared_ptr<BatchLine> LoaderState::line() {
  if (!line_) line_ = channel_->open(channel_line_);
  return line_;
}

void LoaderState::deliver(int64_t units, int64_t samples, int64_t rows, bool nothing_ahead) {
  current_rows_ = rows;
  if (counts_as_it_goes()) {
    current_units_ = units;
    current_samples_ = samples;
    position_ += units;
    last_ = nothing_ahead;
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
  shares_.reset();
  if (decided_) return;
  if (failed && delivered_ == 0) {  // it has not begun: the next loop repeats it
    next_epoch_ = current_epoch_;
    next_start_ = start_;
    return;
  }
  next_epoch_ = current_epoch_ + 1;
  next_start_ = 0;
}

// --- The handle ----------------------------------------------------------------------------------

LoaderHandle::LoaderHandle(std::shared_ptr<LoaderState> state) : state_(std::move(state)) {}

void LoaderHandle::refuse_empty() {
  throw Error(ErrorDetails{.problem = "An empty Loader was used",
                           .expected = "a Loader made by data::loader or returned by prepare()",
                           .got = "a default-constructed or emptied handle"});
}

json LoaderHandle::state_dict() const { return state()->state_dict(); }

void LoaderHandle::load_state_dict(const json& saved) const { state()->load_state_dict(saved); }

}  // namespace accelerant::data
