// How the processes of a run find each other: a key-value store that one of them (meet/store_server.h)
// or their launcher (torchrun, with c10d's TCPStore) serves over TCP.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "accelerant/watch/environment.h"

namespace accelerant::dist {

inline constexpr std::chrono::milliseconds kFirstReminder = std::chrono::seconds(10);

// The store of this process's run. With several processes, the connection lasts as long as this
// process: a second World uses it too. A single process gets a new one in memory each time. Throws
// Error if the store cannot be served or reached. One process per machine logs that it waits, after
// `first_reminder` and again each time the waiting time has doubled.
c10::intrusive_ptr<c10d::Store> store_of(const Environment& environment,
                                         std::chrono::milliseconds timeout,
                                         std::chrono::milliseconds first_reminder = kFirstReminder);

// Waits until every process has called this with the same store and stage, which says what they
// have done ("joined"). The first process present logs who is missing, after `first_reminder` and
// again each time the waiting time has doubled. Throws an Error that names the missing processes.
void await_all(c10d::Store& store, const std::string& stage, const Environment& environment,
               std::chrono::milliseconds timeout,
               std::chrono::milliseconds first_reminder = kFirstReminder);

}  // namespace accelerant::dist
