#include "accelerator/warnings/empty_loop.h"

#include <c10/util/StringUtil.h>

#include "accelerant/data/detail/loader_state.h"

namespace accelerant::detail {

void warn_if_empty(Warnings& warnings, const data::LoaderState& loader) {
  if (!warnings.is_open(&WarningOptions::empty_loop) || !loader.drops_last()) return;
  if (loader.length() != 0 || loader.dataset_length() == 0) return;  // the loader tells the latter
  std::string samples = "the samples of the data set";
  if (const auto length = loader.dataset_length()) samples = c10::str("the ", *length, " samples");
  std::string step = "one step of all processes";
  if (loader.total_batch_size() > 0) step = c10::str(step, " (", loader.total_batch_size(), ")");
  warnings.say(&WarningOptions::empty_loop,
               c10::str("A loop over a loader has no batches: ", samples, " do not fill ", step,
                        ", and drop_last leaves out what is not full. Use a smaller batch_size, "
                        "or .drop_last = false"));
}

}  // namespace accelerant::detail
