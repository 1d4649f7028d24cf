// The board on a store of c10d, under the keys heartbeat/<rank>.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "watch/board.h"

namespace accelerant::dist {

// Where the heartbeat of a process stands.
std::string heartbeat_key(int64_t rank);

// Connects to the store anew (Store::clone), so that others' waits on theirs do not hold it up.
std::unique_ptr<Board> make_store_board(c10d::Store& store, int64_t rank, int64_t size);

}  // namespace accelerant::dist
