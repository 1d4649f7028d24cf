// Checks whether all processes have the same model, before training can go wrong.
#pragma once

#include <string>
#include <vector>

#include "dist/data_parallel.h"

namespace accelerant::dist {

// One line for each parameter, buffer and option that must be the same everywhere:
// "name\tdescription".
std::vector<std::string> describe_model(const std::vector<NamedParameter>& parameters,
                                        const std::vector<at::Tensor>& buffers,
                                        const DataParallelOptions& options);

// Describes where the model of rank `rank` differs from that of rank 0. Empty if it does not.
std::vector<std::string> model_differences(const std::vector<std::string>& first,
                                           const std::vector<std::string>& other, int64_t rank);

// Throws Error on every process if the lines differ between processes.
void require_same_model(const World& world, const std::vector<std::string>& lines);

}  // namespace accelerant::dist
