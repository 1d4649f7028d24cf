#include "data/loader_checks.h"

#include <nlohmann/json.hpp>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::data {
namespace {

using nlohmann::json;

void require_at_least(int64_t minimum, const char* problem, int64_t got) {
  if (got >= minimum) return;
  throw Error(ErrorDetails{.problem = problem,
                           .expected = "at least " + std::to_string(minimum),
                           .got = std::to_string(got)});
}

void refuse(bool both, const char* problem, const char* expected, const char* got) {
  if (both) throw Error(ErrorDetails{.problem = problem, .expected = expected, .got = got});
}

void check_stream(const LoaderOptions& options, const Placement& placement, SourceKind kind) {
  refuse(options.shuffle || options.sampler || options.batch_sampler,
         "The order of a stream cannot be changed", "no shuffle, sampler or batch_sampler",
         "at least one of them");
  refuse(kind == SourceKind::batch_stream && options.batch_size != 1,
         "Ready batches of a stream cannot be changed", "the default batch_size of 1",
         "another value");
  refuse(kind == SourceKind::batch_stream && options.drop_last,
         "Ready batches of a stream cannot be changed", "drop_last = false", "true");
  refuse(kind == SourceKind::batch_stream && placement.split_batches && placement.num_processes > 1,
         "Ready batches cannot be split between processes", "split_batches = false", "true");
}

}  // namespace

void check_options(const LoaderOptions& options, const Placement& placement,
                   const SourceTraits& traits) {
  require_at_least(1, "The batch_size of a loader is too small", options.batch_size);
  constexpr int64_t most = int64_t{1} << 40;  // so that products with other numbers do not overflow
  if (options.batch_size > most) {
    throw Error(ErrorDetails{.problem = "The batch_size of a loader is too large",
                             .expected = "at most 2^40",
                             .got = std::to_string(options.batch_size)});
  }
  require_at_least(0, "The number of workers of a loader is too small",
                   placement.workers.value_or(options.workers));
  require_at_least(1, "The prefetch of a loader is too small",
                   placement.prefetch.value_or(options.prefetch));
  if (traits.kind != SourceKind::indexed) return check_stream(options, placement, traits.kind);
  if (!traits.size) {
    throw Error(ErrorDetails{.problem = "A loader needs to know how many samples there are",
                             .expected = "a data set whose size() returns a number",
                             .got = "nothing",
                             .hint = "make it a stream, with next(), if it has no length"});
  }
  require_at_least(0, "The size() of a data set is negative", *traits.size);
  refuse(options.sampler && options.shuffle, "A loader got two orders", "sampler or shuffle",
         "both");
  refuse(options.batch_sampler &&
             (options.batch_size != 1 || options.shuffle || options.drop_last || options.sampler),
         "A batch sampler makes the batches itself",
         "no batch_size, shuffle, drop_last or sampler with batch_sampler", "at least one of them");
}

void check_channel(const Placement& placement) {
  if (placement.channel) return;
  throw Error(ErrorDetails{
      .problem = "Rank 0 must read for all processes, but the loader cannot send batches",
      .expected = "a channel in its Placement, as Accelerator::prepare sets it",
      .got = "none",
      .hint = "set dispatch_batches to false if every process can read the data set"});
}

void check_order_length(const std::vector<int64_t>& order, int64_t size) {
  if (static_cast<int64_t>(order.size()) == size) return;
  throw Error(
      ErrorDetails{.problem = "A sampler returned a wrong number of indices",
                   .expected = "size() indices from order(), that is " + std::to_string(size),
                   .got = std::to_string(order.size())});
}

void check_order(const std::vector<int64_t>& order, int64_t dataset_length) {
  for (const int64_t index : order) {
    if (index >= 0 && index < dataset_length) continue;
    throw Error(ErrorDetails{.problem = "A sampler returned an index outside the data set",
                             .expected = "0 <= index < " + std::to_string(dataset_length),
                             .got = std::to_string(index)});
  }
}

LoaderPosition read_state(const json& state, std::optional<int64_t> dataset_length) {
  LoaderPosition result{};
  try {
    result = {state.at("seed").get<uint64_t>(), state.at("epoch").get<int64_t>(),
              state.at("position").get<int64_t>()};
  } catch (const json::exception& error) {
    throw Error(ErrorDetails{.problem = "This is not the state of a loader",
                             .expected = "seed, epoch and position",
                             .got = error.what()});
  }
  require_at_least(0, "The state of a loader has an invalid epoch", result.epoch);
  require_at_least(0, "The state of a loader has an invalid position", result.position);
  const auto saved = state.find("dataset_length");
  if (dataset_length && saved != state.end() && *saved != *dataset_length) {
    throw Error(
        ErrorDetails{.problem = "The state of a loader belongs to another data set",
                     .expected = "a data set of length " + saved->dump(),
                     .got = std::to_string(*dataset_length),
                     .hint = "use the data set that the state was saved with; or, to start anew, "
                             "set project.resume = \"no\", or call set_epoch() to start an "
                             "epoch from its beginning"});
  }
  return result;
}

void check_same_parts(const json& state, const LoaderPosition& loaded, int64_t num_processes) {
  if (loaded.position == 0) return;
  const int64_t saved = state.value("num_processes", int64_t{1});
  if (saved == num_processes) return;
  throw Error(ErrorDetails{
      .problem = "The state of a loader belongs to other parts of the data set",
      .expected = "as many processes as saved it (" + std::to_string(saved) +
                  "), for a stream that shards itself",
      .got = std::to_string(num_processes),
      .hint = "use as many processes, or call set_epoch() to start an epoch from its beginning"});
}

}  // namespace accelerant::data
