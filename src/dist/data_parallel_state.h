// What is behind a DataParallel, in the types of c10d. A heavy header.
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

  // A new Reducer in place of the one there may be, with the hook. Of its own buckets unless some
  // are given.
  void make_reducer(std::vector<std::vector<size_t>> buckets = {});
  void drop_reducer();

  // No backward is waited for any more.
  void forget_forwards();

  // An Error if a Reducer could not be made.
  void require_reducer() const;

  // Makes the next backward() reduce. `outputs` tell what is unused, if that is to be found out.
  void arm(const std::vector<at::Tensor>& outputs);

  // When backward() comes to an output of a forward.
  void reach_output(bool synchronised);

  // An Error if parameters take part that did not when the Reducer was made, or if the model is not
  // part of the join that is under way.
  void check_iteration() const;
  void require_part_in_join() const;

  // An Error if an iteration that was to be reduced left some gradients out.
  void require_finished() const;

  void rebuild_buckets();
  void broadcast_buffers(int source);
  void broadcast_model(int source);

  // Throws what the Reducer said about missing gradients in our words.
  [[noreturn]] void rethrow_unfinished(const std::exception& error) const;

  std::shared_ptr<World> world;
  std::vector<NamedParameter> parameters;  // each tensor once
  std::vector<size_t> trained;             // those that the Reducer has
  Buffers buffers;
  DataParallelOptions options;

  // How buckets are exchanged, or null for the Reducer's own way.
  std::shared_ptr<c10d::CommHookInterface> hook;

  // Its own hold on the group, so that the Reducer never has one that is gone.
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<compat::Reducer> reducer;
  // The Reducer reports to it and crashes without.
  std::shared_ptr<c10d::Logger> logger;

  int64_t generation = 0;           // of the Reducer and its buckets
  bool buffers_due = true;          // the last forward with gradients was synchronised
  int64_t preparations = 0;         // calls of arm()
  bool graph_is_known = false;      // a static graph has had its first backward
  bool graph_is_followed = false;   // only in other processes
  std::weak_ptr<void> armed_graph;  // of the synchronised forwards that wait for a backward
  std::shared_ptr<void> requested;  // stands for them where the next backward was asked to exchange
  bool is_announced = false;        // the backward that is to reduce, to the join
  Join* join = nullptr;             // while inputs are uneven
};

}  // namespace accelerant::dist
