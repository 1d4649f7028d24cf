// The board on a c10d store, under the keys heartbeat/<rank>.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>
#include <string>

#include "watch/board.h"

namespace accelerant::dist {

// The key of a process's heartbeat.
std::string heartbeat_key(int64_t rank);

// Opens a new connection to the store (Store::clone), so that waits on other connections do not
// block it.
std::unique_ptr<Board> make_store_board(c10d::Store& store, int64_t rank, int64_t size);

}  // namespace accelerant::dist
