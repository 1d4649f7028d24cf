#include "paging/source.h"

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"

namespace accelerant::paging {

void Source::check(const UnitLayout&) const {}

std::optional<LentMemory> Source::lend(const UnitLayout&) { return std::nullopt; }

void Source::store(const UnitLayout& layout, const at::Tensor&) {
  throw Error(c10::str("Changes to \"", layout.name, "\" cannot be stored in ", describe()));
}

}  // namespace accelerant::paging
