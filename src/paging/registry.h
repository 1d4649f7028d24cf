// Finds the unit of a storage, and guards the state of all units of the process with one mutex.
//
// It is held while states change and while work is queued on streams, but not while memory is
// copied by the host, while files are read, or while anything is waited for. An operator that finds
// its units in memory holds it twice for some tens of nanoseconds.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/flat_hash_map.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "paging/unit_state.h"

namespace accelerant::paging {

struct Registry {
  static Registry& instance();

  std::mutex mutex;
  std::condition_variable moved;  // a unit is no longer `moving`
  ska::flat_hash_map<const c10::StorageImpl*, UnitState*> units;

  // Units that were in use when their Pager ended. Pins still refer to them.
  std::vector<std::shared_ptr<UnitState>> orphans;
};

}  // namespace accelerant::paging
