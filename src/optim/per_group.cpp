#include "accelerant/optim/lr_schedule.h"

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"

namespace accelerant::optim {

double PerGroup::of(std::size_t group) const {
  if (!is_list_) return values_.front();
  if (group < values_.size()) return values_[group];
  throw Error(ErrorDetails{.problem = "an option has no value for a param group",
                           .expected = c10::str("at least ", group + 1, " values"),
                           .got = c10::str(values_.size())});
}

void PerGroup::check_size(std::size_t groups, const char* name) const {
  if (!is_list_ || empty() || values_.size() == groups) return;
  throw Error(ErrorDetails{
      .problem = c10::str(name, " does not fit the optimizer's param groups"),
      .expected = c10::str(groups, groups == 1 ? " value" : " values, one for each group"),
      .got = c10::str(values_.size()),
      .hint = "a number without braces is for all groups"});
}

}  // namespace accelerant::optim
