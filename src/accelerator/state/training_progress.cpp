#include "accelerator/state/training_progress.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerant/data/detail/loader_state.h"

namespace accelerant::detail {
namespace {

bool contains(const std::vector<const data::LoaderState*>& loaders,
              const data::LoaderState& loader) {
  return std::ranges::find(loaders, &loader) != loaders.end();
}

}  // namespace

int64_t TrainingProgress::begin_epochs(int64_t count) {
  const int64_t range = ranges_++;
  end_epochs();
  if (!resume_at_ || range > resume_at_->range) return 0;
  if (range < resume_at_->range) return count;
  return std::min(resume_at_->epoch, count);
}

void TrainingProgress::begin_epoch(int64_t epoch) {
  in_epochs_ = true;
  epoch_ = epoch;
  has_trained_ = false;
  trained_with_.clear();
}

void TrainingProgress::end_epochs() {
  in_epochs_ = false;
  trained_with_.clear();
}

void TrainingProgress::begin_loop(const data::LoaderState& loader, int64_t backwards) {
  if (running_.empty() && contains(ever_trained_with_, loader)) ++repeated_loops_;
  running_.push_back({&loader, backwards});
}

void TrainingProgress::end_loop(const data::LoaderState& loader, int64_t backwards) {
  const auto found = std::ranges::find(running_, &loader, &Running::loader);
  if (found == running_.end()) return;
  const bool ran_backward = backwards > found->backwards_at_begin;
  const bool trained = ran_backward || loader.is_skipped();
  running_.erase(found);
  if (running_.empty() && ran_backward && !contains(ever_trained_with_, loader)) {
    ever_trained_with_.push_back(&loader);
  }
  // Without epochs() it is unknown where an epoch ends.
  if (in_epochs_ && trained && !was_trained_with(loader)) trained_with_.push_back(&loader);
}

int64_t TrainingProgress::epoch_to_resume() const {
  return is_inside_epoch() ? epoch_ : epoch_ + 1;
}

bool TrainingProgress::was_trained_with(const data::LoaderState& loader) const {
  return contains(trained_with_, loader);
}

bool TrainingProgress::is_training_with(const data::LoaderState& loader, int64_t backwards) const {
  const auto found = std::ranges::find(running_, &loader, &Running::loader);
  return found != running_.end() && backwards > found->backwards_at_begin;
}

TrainingProgress::Place TrainingProgress::place_to_resume() const {
  if (!in_epochs_) return {.range = ranges_, .epoch = 0};
  return {.range = ranges_ - 1, .epoch = epoch_to_resume()};
}

nlohmann::json TrainingProgress::state_dict() const {
  const Place place = place_to_resume();
  return {{"range", place.range}, {"epoch", place.epoch}};
}

void TrainingProgress::load_state_dict(const nlohmann::json& state) {
  resume_at_ = {.range = state.at("range").get<int64_t>(),
                .epoch = state.at("epoch").get<int64_t>()};
}

}  // namespace accelerant::detail
