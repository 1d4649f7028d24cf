// A unit while it is attached.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paging/source.h"

namespace accelerant::paging {

class Engine;

// All members but the first group are guarded by the registry's mutex (registry.h), except while
// the unit is `moving`: then source, block and arrival belong to the thread that moves it.
struct UnitState {
  enum class Where {
    absent,
    moving,  // a thread is bringing it in, storing it or copying it
    resident,
  };

  Engine* engine = nullptr;  // null once it is detached
  std::size_t index = 0;
  UnitLayout layout = {};
  std::vector<c10::Storage> storages = {};  // owned: a parameter may drop its own
  std::vector<std::string> texts = {};      // what reading an absent storage's address throws

  std::shared_ptr<Source> source = {};
  Where where = Where::absent;
  at::Tensor block = {};                // while resident, unless lent
  std::optional<LentMemory> lent = {};  // while the source lends its memory
  std::vector<std::pair<std::shared_ptr<Source>, std::shared_ptr<void>>> retired = {};  // had lent
  std::optional<c10::Event> arrival = {};  // on an accelerator: the end of the last fetch
  bool has_arrived = false;                // the host has waited for `arrival`

  bool is_changed = false;                      // since it was fetched
  bool is_finished = false;                     // backward has had all its gradients since
  uint32_t gradients = 0;                       // that have been accumulated since it was finished
  uint32_t trained = 0;                         // parameters that have gradients
  uint32_t pins = 0;                            // operators and guards that use it
  uint32_t guards = 0;                          // Residency objects among them
  uint64_t last_use = 0;                        // counts uses of all units
  c10::SmallVector<c10::Stream, 2> users = {};  // streams that used it since it was fetched
};

}  // namespace accelerant::paging
