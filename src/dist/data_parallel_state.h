// The implementation of DataParallel, in the types of c10d. A heavy header.
#pragma once

#include <torch/csrc/distributed/c10d/logger.hpp>

#include "compat/c10d.h"
#include "dist/data_parallel.h"

namespace accelerant::dist {

class Join;

inline constexpr const char* kAveragingGradients = "averaging gradients";

// Shared with the hooks on the outputs of forwards, which may outlive the DataParallel.
struct DataParallel::State : std::enable_shared_from_this<DataParallel::State> {
  State(std::shared_ptr<World> world, const std::vector<NamedParameter>& parameters,
        Buffers buffers, const DataParallelOptions& options);
  ~State();

  // Creates a new Reducer with the hook, in place of an existing one. It chooses its own buckets
  // unless some are given.
  void make_reducer(std::vector<std::vector<size_t>> buckets = {});
  void drop_reducer();

  // Stops waiting for a backward.
  void forget_forwards();

  // Throws Error if a Reducer could not be created.
  void require_reducer() const;

  // Makes the next backward() reduce. `outputs` determine what is unused, if that has to be found.
  void arm(const std::vector<at::Tensor>& outputs);

  // Called when backward() reaches an output of a forward.
  void reach_output(bool synchronised);

  // Throws Error if parameters take part that did not when the Reducer was created, or if the model
  // is not part of the current join.
  void check_iteration() const;
  void require_part_in_join() const;

  // Throws Error if an iteration that should have been reduced left some gradients out.
  void require_finished() const;

  void rebuild_buckets();
  void broadcast_buffers(int source);
  void broadcast_model(int source);

  // Throws what the Reducer reported about missing gradients, in our words.
  [[noreturn]] void rethrow_unfinished(const std::exception& error) const;

  std::shared_ptr<World> world;
  std::vector<NamedParameter> parameters;  // each tensor once
  std::vector<size_t> trained;             // indices of those that the Reducer has
  Buffers buffers;
  DataParallelOptions options;

  // How buckets are exchanged; null for the Reducer's own way.
  std::shared_ptr<c10d::CommHookInterface> hook;

  // Keeps the group alive for the Reducer.
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<compat::Reducer> reducer;
  // The Reducer reports to it, and crashes without it.
  std::shared_ptr<c10d::Logger> logger;

  int64_t generation = 0;           // of the Reducer and its buckets
  bool buffers_due = true;          // the last forward with gradients was synchronised
  int64_t preparations = 0;         // calls of arm()
  bool graph_is_known = false;      // a static graph has had its first backward
  bool graph_is_followed = false;   // only other processes had the first backward
  std::weak_ptr<void> armed_graph;  // of synchronised forwards waiting for a backward
  std::shared_ptr<void> requested;  // replaces them if the next backward was asked to exchange
  bool is_announced = false;        // the join knows about the backward that will reduce
  Join* join = nullptr;             // during join_uneven()
};

}  // namespace accelerant::dist
