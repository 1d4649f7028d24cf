#include "paging/offload/files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "core/files.h"
#include "core/texts.h"
#include "paging/key_alias.h"
#include "store/model_files.h"
#include "store/model_folder.h"
#include "tensor/storage_move.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::paging {
namespace {

using format::SafetensorsFile;

constexpr int64_t kPiece = int64_t{16} << 20;  // bytes that are written at a time

std::shared_ptr<const SafetensorsFile> map_file(const std::string& path) {
  return std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
}

bool has_form_of(const FileTensor& stored, const at::Tensor& parameter) {
  const format::TensorInfo& info = stored.file->info(stored.name);
  return torch_dtype(info.dtype) == parameter.scalar_type() &&
         c10::IntArrayRef(info.shape) == parameter.sizes();
}

// Compared as bytes, so that NaNs are equal to themselves.
bool has_values_of(const FileTensor& stored, const at::Tensor& parameter) {
  const at::Tensor values = parameter.detach().cpu().contiguous();
  const auto bytes = stored.file->view(stored.name);
  return bytes.size() == values.nbytes() &&
         std::memcmp(bytes.data(), values.const_data_ptr(), bytes.size()) == 0;
}

bool serves(const FileTensor& stored, const at::Tensor& parameter) {
  return has_form_of(stored, parameter) &&
         (parameter.is_meta() || has_values_of(stored, parameter));
}

// Parameters that are one tensor under several names. All have its memory as a whole.
using Group = std::vector<const NamedParameter*>;

std::vector<Group> groups_of(const std::vector<NamedParameter>& parameters) {
  std::vector<Group> groups;
  std::unordered_map<const c10::StorageImpl*, std::size_t> known;
  for (const NamedParameter& named : parameters) {
    const auto [entry, is_new] = known.try_emplace(storage_of(named.parameter), groups.size());
    if (is_new) groups.emplace_back();
    groups[entry->second].push_back(&named);
  }
  return groups;
}

// A tensor under any of the names; nullptr if none fits.
template <class Fits>
const FileTensor* found_in(const FileTensors& known, const Group& group, const Fits& fits) {
  for (const NamedParameter* const named : group) {
    const auto found = known.find(named->name);
    if (found != known.end() && fits(found->second, named->parameter)) return &found->second;
  }
  return nullptr;
}

[[noreturn]] void refuse_without_folder(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const NamedParameter& named : parameters) names.push_back(named.name);
  throw Error(ErrorDetails{.problem = "Weights cannot be offloaded to the disk",
                           .expected = "an offload_folder",
                           .got = "none, and no file that holds " + list_text(names, 5),
                           .hint = "set offload_folder"});
}

[[noreturn]] void refuse_missing(const NamedParameter& named, const FileTensors& known) {
  const auto found = known.find(named.name);
  std::string got = "no such tensor";
  if (found != known.end()) {
    const format::TensorInfo& info = found->second.file->info(found->second.name);
    got = c10::str(format::dtype_name(info.dtype), " ", c10::IntArrayRef(info.shape));
  }
  throw Error(ErrorDetails{
      .problem =
          "The parameter \"" + named.name + "\" is on the meta device and cannot be offloaded",
      .expected = c10::str("files with its values, ", c10::toString(named.parameter.scalar_type()),
                           " ", named.parameter.sizes()),
      .got = got,
      .hint = "use load_checkpoint_and_dispatch(), which converts types, or load the model first"});
}

void write_values(const at::Tensor& parameter, format::ByteSink& sink) {
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = parameter.detach().contiguous().view({-1}).view(at::kByte);
  for (int64_t done = 0; done < bytes.numel(); done += kPiece) {
    const at::Tensor piece =
        bytes.narrow(0, done, std::min(kPiece, bytes.numel() - done)).cpu().contiguous();
    sink.write({static_cast<const std::byte*>(piece.const_data_ptr()), piece.nbytes()});
    failpoint("offload.writing");
  }
}

format::DType storable_type(const NamedParameter& named) {
  const auto type = format_dtype(named.parameter.scalar_type());
  if (type) return *type;
  throw Error(ErrorDetails{.problem = "The parameter \"" + named.name + "\" cannot be offloaded",
                           .expected = "a type that safetensors supports",
                           .got = c10::toString(named.parameter.scalar_type()),
                           .hint = "place it on \"cpu\""});
}

void write_file(const std::vector<NamedParameter>& parameters, const std::string& folder,
                const ValueOf& value_of) {
  std::vector<format::TensorToWrite> tensors;
  for (const NamedParameter& named : parameters) {
    tensors.push_back({.name = named.name,
                       .dtype = storable_type(named),
                       .shape = named.parameter.sizes().vec(),
                       .produce = [&](format::ByteSink& sink) {
                         write_values(named.parameter.is_meta() ? value_of(named) : named.parameter,
                                      sink);
                       }});
  }
  try {
    make_folders(folder);
    failpoint("offload.before_write");
    format::save_safetensors(join_path(folder, kOffloadFile), std::move(tensors),
                             format::Metadata{{"format", "pt"}});
  } catch (const SystemError& error) {
    if (!error.is_full_disk()) throw;
    uint64_t bytes = 0;
    for (const NamedParameter& named : parameters) bytes += named.parameter.nbytes();
    throw Error(
        ErrorDetails{.problem = "Weights cannot be offloaded to " + folder,
                     .expected = c10::str("room for ", bytes, " bytes"),
                     .got = error.what(),
                     .hint = "name a folder on a disk with room, or place less on \"disk\""});
  }
}

void add_file(FileTensors& tensors, const std::string& path) {
  const auto file = map_file(path);
  for (const format::TensorInfo& info : file->tensors()) {
    tensors.insert_or_assign(info.name, FileTensor{file, info.name});
  }
}

}  // namespace

FileTensors tensors_of_file(const std::string& path) {
  FileTensors tensors;
  add_file(tensors, path);
  return tensors;
}

FileTensors tensors_of_model(const std::string& path) {
  FileTensors tensors;
  for (const auto& file : checkpoint::open_model(path)) {
    if (std::string_view(file->format()) != "safetensors") return {};
    add_file(tensors, file->path());
    for (const auto& [alias, kept] : file->aliases()) {
      if (tensors.contains(kept)) tensors.try_emplace(alias, tensors.at(kept));
    }
  }
  return tensors;
}

FileTensors tensors_of_index(const std::map<std::string, OffloadedWeight>& index) {
  FileTensors tensors;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const auto& [name, weight] : index) {
    auto& file = files[weight.safetensors_file];
    if (!file) file = map_file(weight.safetensors_file);
    const std::string& stored = weight.weight_name.empty() ? name : weight.weight_name;
    file->info(stored);  // throws if there is none
    tensors[name] = {file, stored};
  }
  return tensors;
}

std::vector<std::string> missing_from(const FileTensors& known,
                                      const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> missing;
  for (const Group& group : groups_of(parameters)) {
    if (found_in(known, group, has_form_of) == nullptr) missing.push_back(group.front()->name);
  }
  return missing;
}

FileTensors put_on_disk(const std::vector<NamedParameter>& parameters, const FileTensors& known,
                        const std::string& folder, const ValueOf& value_of) {
  const std::string path = folder.empty() ? "" : join_path(folder, kOffloadFile);
  FileTensors chosen;
  std::vector<NamedParameter> to_write;
  std::vector<NamedParameter> written_before;
  for (const Group& group : groups_of(parameters)) {
    const NamedParameter& first = *group.front();
    if (const FileTensor* const found = found_in(known, group, serves)) {
      chosen.insert_or_assign(first.name, *found);
      if (found->file->label() == path) written_before.push_back({first.name, view_of(*found)});
      continue;
    }
    if (first.parameter.is_meta() && !value_of) refuse_missing(first, known);
    to_write.push_back(first);
  }
  if (to_write.empty()) return chosen;
  if (folder.empty()) refuse_without_folder(to_write);
  // The new file replaces the old one: later processes shall find what both had.
  to_write.insert(to_write.end(), written_before.begin(), written_before.end());
  write_file(to_write, folder, value_of);
  const auto file = map_file(path);
  for (const NamedParameter& named : to_write) {
    chosen.insert_or_assign(named.name, FileTensor{file, named.name});
  }
  return chosen;
}

void fill_from(const FileTensors& known, const std::vector<NamedParameter>& tensors,
               c10::Device device) {
  const at::NoGradGuard no_grad;
  for (const NamedParameter& named : tensors) {
    const auto found = known.find(named.name);
    if (found == known.end() || !has_form_of(found->second, named.parameter)) {
      refuse_missing(named, known);
    }
  }
  StorageMove move(device);
  for (const NamedParameter& named : tensors) {
    if (!named.parameter.is_meta()) continue;  // the same tensor under another name
    move.move(named.parameter);
    named.parameter.detach().copy_(view_of(known.at(named.name)));
  }
}

at::Tensor view_of(const FileTensor& stored) {
  const format::TensorInfo& info = stored.file->info(stored.name);
  const auto bytes = stored.file->view(stored.name);
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), info.shape, [file = stored.file](void*) {},
      torch_dtype(info.dtype).value());
}

}  // namespace accelerant::paging
