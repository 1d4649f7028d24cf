// Weights in files: finds those that are there already, and writes the others.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "accelerant/paging/offload.h"
#include "paging/mapped_file.h"
#include "paging/unit.h"
#include "store/model_files.h"

namespace accelerant::paging {

// Where weights are written that no file has.
inline constexpr const char* kOffloadFile = "offload.safetensors";

// The tensors of a safetensors model: a file, an index or a folder that holds either. Empty if there
// is no model, or one of another format.
FileTensors tensors_of_model(const std::string& path);

// The same for the files of a model that is open: for those very files, also if the model is saved
// again meanwhile.
FileTensors tensors_of_model(const checkpoint::WeightFiles& files);

// Those of one file, and those of a folder where weights were offloaded to or that has a safetensors
// model. Where both have a tensor, the model's.
FileTensors tensors_of_file(const std::string& path);
FileTensors tensors_in_folder(const std::string& folder);

// Those of an index. Throws Error if a file cannot be opened or lacks a tensor.
FileTensors tensors_of_index(const std::map<std::string, OffloadedWeight>& index);

// The values of a parameter on the meta device, on the CPU; undefined if there are none.
using ValueOf = std::function<at::Tensor(const NamedParameter&)>;

// A file tensor for each tensor, under the first of its names: one of `known` that has the same
// form and values, or else one that is written to kOffloadFile in the folder, which is created. A
// parameter on the meta device takes whatever values the files have, or else those of `value_of`.
// Throws Error, and changes no parameter's values, if one is nowhere, the folder is needed and
// empty (""), or cannot be written.
FileTensors put_on_disk(const std::vector<NamedParameter>& parameters, const FileTensors& known,
                        const std::string& folder, const ValueOf& value_of = {});

// The names of parameters of which `known` has no tensor of the same type and shape.
std::vector<std::string> missing_from(const FileTensors& known,
                                      const std::vector<NamedParameter>& parameters);

// One of `known` for each tensor, under the first of its names. Throws Error if one is not there in
// the same form.
FileTensors values_in(const FileTensors& known, const std::vector<NamedParameter>& tensors);

// Reads a file's tensor into one of the same form, on any device.
void read_into(const FileTensor& stored, const at::Tensor& target);

}  // namespace accelerant::paging
