#include "paging/offload/files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "core/files.h"
#include "core/texts.h"
#include "paging/key_alias.h"
#include "store/model_folder.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::paging {
namespace {

using format::SafetensorsFile;

// Bytes that are written or read at a time.
constexpr int64_t kPiece = int64_t{16} << 20;
constexpr uint64_t kReadPiece = uint64_t{1} << 20;

std::shared_ptr<const SafetensorsFile> map_file(const std::string& path) {
  return std::make_shared<const SafetensorsFile>(SafetensorsFile::open(path));
}

bool has_form_of(const FileTensor& stored, const at::Tensor& parameter) {
  const format::TensorInfo& info = stored.file->info(stored.name);
  return torch_dtype(info.dtype) == parameter.scalar_type() &&
         c10::IntArrayRef(info.shape) == parameter.sizes();
}

// Until `use` returns false. Not through the mapping: a file that was truncated is an Error then.
void read_pieces(const FileTensor& stored,
                 const std::function<bool(std::span<const std::byte> piece)>& use) {
  const uint64_t size = stored.file->info(stored.name).bytes();
  std::vector<std::byte> buffer(std::min(size, kReadPiece));
  for (uint64_t done = 0; done < size;) {
    const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), size - done));
    stored.file->read_part(stored.name, done, piece);
    if (!use(piece)) return;
    done += piece.size();
  }
}

// Compared as bytes, so that NaNs are equal to themselves.
bool has_values_of(const FileTensor& stored, const at::Tensor& parameter) {
  const at::Tensor values = parameter.detach().cpu().contiguous();
  if (stored.file->info(stored.name).bytes() != values.nbytes()) return false;
  bool is_equal = true;
  const auto* expected = static_cast<const std::byte*>(values.const_data_ptr());
  read_pieces(stored, [&](std::span<const std::byte> piece) {
    is_equal = std::memcmp(piece.data(), expected, piece.size()) == 0;
    expected += piece.size();
    return is_equal;
  });
  return is_equal;
}

bool serves(const FileTensor& stored, const at::Tensor& parameter) {
  return has_form_of(stored, parameter) &&
         (parameter.is_meta() || has_values_of(stored, parameter));
}

// Parameters that are one tensor under several names: the same memory in the same form.
using Group = std::vector<const NamedParameter*>;

std::vector<Group> groups_of(const std::vector<NamedParameter>& parameters) {
  std::vector<Group> groups;
  std::map<std::tuple<const c10::StorageImpl*, int64_t, std::vector<int64_t>>, std::size_t> known;
  for (const NamedParameter& named : parameters) {
    const at::Tensor& tensor = named.parameter;
    const auto [entry, is_new] = known.try_emplace(
        {storage_of(tensor), tensor.storage_offset(), tensor.sizes().vec()}, groups.size());
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

[[noreturn]] void refuse_without_folder(const std::vector<format::TensorToWrite>& tensors) {
  std::vector<std::string> names;
  for (const format::TensorToWrite& tensor : tensors) names.push_back(tensor.name);
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

// `value_of` must live until it is written.
format::TensorToWrite with_values_of(const NamedParameter& named, const ValueOf& value_of) {
  return {.name = named.name,
          .dtype = storable_type(named),
          .shape = named.parameter.sizes().vec(),
          .produce = [named, &value_of](format::ByteSink& sink) {
            write_values(named.parameter.is_meta() ? value_of(named) : named.parameter, sink);
          }};
}

format::TensorToWrite copy_of(const FileTensor& stored, const std::string& name) {
  const format::TensorInfo& info = stored.file->info(stored.name);
  return {.name = name,
          .dtype = info.dtype,
          .shape = info.shape,
          .produce = [stored](format::ByteSink& sink) {
            read_pieces(stored, [&](std::span<const std::byte> piece) {
              sink.write(piece);
              return true;
            });
          }};
}

void write_file(std::vector<format::TensorToWrite> tensors, const std::string& folder) {
  uint64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += format::byte_size(tensor.dtype, tensor.shape).value();
  try {
    make_folders(folder);
    failpoint("offload.before_write");
    format::save_safetensors(join_path(folder, kOffloadFile), std::move(tensors),
                             format::Metadata{{"format", "pt"}});
  } catch (const SystemError& error) {
    if (!error.is_full_disk()) throw;
    throw Error(
        ErrorDetails{.problem = "Weights cannot be offloaded to " + folder,
                     .expected = c10::str("room for ", bytes, " bytes"),
                     .got = error.what(),
                     .hint = "name a folder on a disk with room, or place less on \"disk\""});
  }
}

void add_file(FileTensors& tensors, const std::shared_ptr<const SafetensorsFile>& file) {
  for (const format::TensorInfo& info : file->tensors()) {
    tensors.insert_or_assign(info.name, FileTensor{file, info.name});
  }
}

}  // namespace

FileTensors tensors_of_file(const std::string& path) {
  FileTensors tensors;
  add_file(tensors, map_file(path));
  return tensors;
}

FileTensors tensors_of_model(const std::string& path) {
  return tensors_of_model(checkpoint::open_model(path));
}

FileTensors tensors_of_model(const checkpoint::WeightFiles& files) {
  FileTensors tensors;
  for (const auto& file : files) {
    const auto mapped = file->map();
    if (!mapped) return {};
    add_file(tensors, mapped);
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
  std::vector<format::TensorToWrite> to_write;
  std::vector<format::TensorToWrite> written_before;
  for (const Group& group : groups_of(parameters)) {
    const NamedParameter& first = *group.front();
    if (const FileTensor* const found = found_in(known, group, serves)) {
      chosen.insert_or_assign(first.name, *found);
      if (found->file->label() == path) written_before.push_back(copy_of(*found, first.name));
      continue;
    }
    if (first.parameter.is_meta() && !value_of) refuse_missing(first, known);
    to_write.push_back(with_values_of(first, value_of));
  }
  if (to_write.empty()) return chosen;
  if (folder.empty()) refuse_without_folder(to_write);
  // The new file replaces the old one: later processes shall find what both had.
  std::ranges::move(written_before, std::back_inserter(to_write));
  write_file(std::move(to_write), folder);
  for (auto& [name, tensor] : tensors_of_file(path)) {
    chosen.insert_or_assign(name, std::move(tensor));
  }
  return chosen;
}

FileTensors values_in(const FileTensors& known, const std::vector<NamedParameter>& tensors) {
  FileTensors values;
  for (const Group& group : groups_of(tensors)) {
    const FileTensor* const found = found_in(known, group, has_form_of);
    if (found == nullptr) refuse_missing(*group.front(), known);
    values.insert_or_assign(group.front()->name, *found);
  }
  return values;
}

void read_into(const FileTensor& stored, const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = target.is_cpu() && target.is_contiguous()
                                ? target
                                : at::empty(target.sizes(), at::TensorOptions(target.dtype()));
  stored.file->read(stored.name,
                    {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  if (!values.is_same(target)) target.copy_(values);
}

}  // namespace accelerant::paging
