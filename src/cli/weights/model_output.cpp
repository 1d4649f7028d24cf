#include "cli/weights/model_output.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <unordered_map>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors.h"
#include "cli/weights/text.h"
#include "core/atomic_file.h"
#include "core/files.h"
#include "format/float_conversion.h"
#include "format/plain_tensor.h"
#include "format/shard_index.h"
#include "format/shard_split.h"
#include "format/torch_archive.h"
#include "store/file_writer.h"
#include "store/manifest.h"
#include "store/model_folder.h"

namespace accelerant::cli {
namespace {

using format::DType;

// A tensor on its way from one file to another.
struct Entry {
  const checkpoint::WeightFile* file = nullptr;
  const checkpoint::WeightTensor* tensor = nullptr;
  std::vector<std::string> aliases = {};
  std::optional<DType> type = {};  // to be written
  std::uint64_t bytes = 0;         // to be written

  bool is_converted() const { return type != tensor->type; }
  std::string dtype_name() const {
    return type ? std::string(format::dtype_name(*type)) : tensor->dtype;
  }
};

class ModelOutput {
 public:
  ModelOutput(const checkpoint::WeightFiles& model, const OutputOptions& options)
      : options_(options), progress_("write", input_bytes(model)) {
    std::set<std::string> stored;
    for (const auto& file : model) {
      for (const checkpoint::WeightTensor& tensor : file->tensors()) stored.insert(tensor.name);
    }
    for (const auto& file : model) {
      for (const auto& [key, text] : file->metadata()) metadata_.emplace(key, text);
      if (attributes_.empty()) attributes_ = file->attributes();
      for (const checkpoint::WeightTensor& tensor : file->tensors()) add(*file, tensor, stored);
    }
    // Hugging Face's libraries refuse files that do not name their framework.
    metadata_.emplace("format", "pt");
  }

  // Whether no value changes.
  bool is_lossless() const {
    return std::ranges::all_of(entries_, [](const Entry& entry) {
      return !entry.is_converted() || format::is_lossless(*entry.tensor->type, *entry.type);
    });
  }

  WrittenModel write_to(const checkpoint::ModelSave& save) {
    const format::ShardNaming naming =
        options_.safetensors ? format::ShardNaming{}
                             : format::ShardNaming{.stem = "pytorch_model", .extension = ".bin"};
    format::ShardPlan plan =
        format::split_into_shards(to_place(), options_.max_shard_bytes, naming);
    if (plan.shards.empty()) plan.shards.push_back({.file = naming.file(1, 1)});
    for (const format::Shard& shard : plan.shards) {
      checkpoint::FileWriter file(save.new_file(shard.file), sum_up());
      if (options_.safetensors) {
        write_safetensors(shard.tensors, file);
      } else {
        write_archive(shard.tensors, file);
      }
      finish(file, shard.file);
    }
    if (plan.is_sharded()) {
      const std::string index = format::print_shard_index(format::index_of(plan));
      checkpoint::FileWriter file(save.new_file(naming.index_file()), sum_up());
      file.write(std::as_bytes(std::span(index)));
      finish(file, naming.index_file());
    }
    return written();
  }

  WrittenModel write_single(const std::string& path) {
    format::AtomicFile file(path);
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.push_back(entry.tensor->name);
    write_safetensors(names, file);
    checkpoint::forget_checksums_of(path);
    file.commit();
    written_.files.push_back(name_of(path));
    return written();
  }

  const checkpoint::ModelChecksums& checksums() const { return sums_; }

 private:
  checkpoint::SumUp sum_up() const {
    return options_.checksums ? checkpoint::SumUp::blocks : checkpoint::SumUp::no;
  }

  void finish(checkpoint::FileWriter& file, const std::string& name) {
    const checkpoint::FileChecksums sums = file.finish_blocks();
    if (options_.checksums) sums_[name] = sums;
    written_.files.push_back(name);
  }

  static std::uint64_t input_bytes(const checkpoint::WeightFiles& model) {
    std::uint64_t total = 0;
    for (const auto& file : model) {
      for (const checkpoint::WeightTensor& tensor : file->tensors()) total += tensor.bytes;
    }
    return total;
  }

  void add(const checkpoint::WeightFile& file, const checkpoint::WeightTensor& tensor,
           const std::set<std::string>& stored) {
    Entry entry{.file = &file, .tensor = &tensor, .type = tensor.type, .bytes = tensor.bytes};
    if (options_.dtype && tensor.type && format::is_convertible_float(*tensor.type)) {
      entry.type = options_.dtype;
      entry.bytes = tensor.elements() * (format::dtype_bits(*options_.dtype) / 8);
    }
    for (const auto& [alias, name] : file.aliases()) {
      if (name == tensor.name && !stored.contains(alias)) entry.aliases.push_back(alias);
    }
    const bool can_be_stored = options_.safetensors
                                   ? entry.type.has_value()
                                   : format::find_dtype(entry.dtype_name()) != nullptr;
    if (!can_be_stored) {
      throw Error(ErrorDetails{.problem = "Cannot write the tensor '" + tensor.name + "'",
                               .expected = std::string("a data type of ") +
                                           (options_.safetensors ? "safetensors" : "torch"),
                               .got = tensor.dtype});
    }
    by_name_.emplace(tensor.name, entries_.size());
    for (const std::string& alias : entry.aliases) by_name_.emplace(alias, entries_.size());
    written_.bytes += entry.bytes;
    entries_.push_back(std::move(entry));
  }

  std::vector<format::TensorToPlace> to_place() const {
    std::vector<format::TensorToPlace> tensors;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      tensors.push_back({.name = entry.tensor->name, .bytes = entry.bytes, .storage = i});
      if (options_.safetensors) continue;
      // In the format of torch.save two names can share their memory.
      for (const std::string& alias : entry.aliases) {
        tensors.push_back({.name = alias, .bytes = entry.bytes, .storage = i});
      }
    }
    return tensors;
  }

  void write_piece(const Entry& entry, std::span<const std::byte> piece, std::uint64_t& overflows,
                   std::vector<std::byte>& buffer, format::ByteSink& sink) {
    progress_.advance(piece.size());
    if (!entry.is_converted()) {
      sink.write(piece);
      return;
    }
    const std::size_t count = piece.size() / (format::dtype_bits(*entry.tensor->type) / 8);
    buffer.resize(count * (format::dtype_bits(*entry.type) / 8));
    overflows += format::convert_floats(*entry.tensor->type, piece, *entry.type, buffer);
    sink.write(buffer);
  }

  void write_tensor(const Entry& entry, format::ByteSink& sink) {
    std::uint64_t overflows = 0;
    std::vector<std::byte> buffer;
    entry.file->for_each_piece(*entry.tensor, [&](std::span<const std::byte> piece) {
      write_piece(entry, piece, overflows, buffer, sink);
    });
    if (overflows > 0) written_.overflows.emplace_back(entry.tensor->name, overflows);
  }

  void write_safetensors(const std::vector<std::string>& names, format::ByteSink& sink) {
    format::Metadata metadata = metadata_;
    std::vector<format::TensorToWrite> tensors;
    for (const std::string& name : names) {
      const Entry& entry = entries_[by_name_.at(name)];
      tensors.push_back(
          {.name = name,
           .dtype = *entry.type,
           .shape = entry.tensor->shape,
           .produce = [this, &entry](format::ByteSink& target) { write_tensor(entry, target); }});
      for (const std::string& alias : entry.aliases) metadata.insert_or_assign(alias, name);
    }
    format::SafetensorsWriter(std::move(tensors), metadata).write(sink);
  }

  std::shared_ptr<const format::PlainStorage> storage_of(const Entry& entry) {
    return std::make_shared<format::PlainStorage>(
        entry.bytes, [this, &entry](format::ByteSink& sink) { write_tensor(entry, sink); });
  }

  void write_archive(const std::vector<std::string>& names, format::ByteSink& sink) {
    std::unordered_map<const Entry*, std::shared_ptr<const format::PlainStorage>> storages;
    format::PlainDict dict;
    dict.kind = format::PlainDictKind::ordered;
    dict.attributes = attributes_;
    for (const std::string& name : names) {
      const Entry& entry = entries_[by_name_.at(name)];
      auto& storage = storages[&entry];
      if (!storage) storage = storage_of(entry);
      dict.items.push_back({.key = name,
                            .value = format::PlainTensor::contiguous(
                                entry.dtype_name(), entry.tensor->shape, storage)});
    }
    format::write_torch_archive(std::move(dict), sink);
  }

  WrittenModel written() {
    written_.tensors = entries_.size();
    return std::move(written_);
  }

  OutputOptions options_;
  ByteProgress progress_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::size_t> by_name_;  // aliases too
  format::Metadata metadata_;
  std::vector<format::PlainItem> attributes_;
  WrittenModel written_;
  checkpoint::ModelChecksums sums_;
};

std::string real_path(const std::string& path) {
  char found[PATH_MAX];
  return ::realpath(path.c_str(), found) == nullptr ? path : found;
}

// A file of another model than the one that is read, which would be replaced.
std::optional<std::string> other_model_file(const checkpoint::WeightFiles& model,
                                            const std::string& folder) {
  for (const std::string& name : entries_of(folder)) {
    if (!checkpoint::is_model_file(name) || name.ends_with(".index.json")) continue;
    const auto is_it = [&](const auto& file) { return name_of(file->path()) == name; };
    if (std::ranges::none_of(model, is_it)) return name;
  }
  return std::nullopt;
}

void require_safe(const checkpoint::WeightFiles& model, const std::string& input,
                  const std::string& folder, bool is_lossless) {
  if (path_exists(folder) && !is_folder(folder)) throw UsageError{folder + " is not a folder"};
  if (path_exists(join_path(folder, checkpoint::kManifestName))) {
    throw UsageError{
        folder + " is a checkpoint, and writing into it would damage it; choose another folder"};
  }
  if (real_path(is_folder(input) ? input : folder_of(input)) != real_path(folder)) return;
  if (!is_lossless) {
    throw UsageError{"the model in " + folder +
                     " would be replaced by one of less precision; choose another folder"};
  }
  if (const auto other = other_model_file(model, folder)) {
    throw UsageError{join_path(folder, *other) +
                     " belongs to another model and would be replaced; choose another folder"};
  }
}

}  // namespace

checkpoint::WeightFiles open_input(const std::string& path, const OutputOptions& options) {
  auto model = options.checksums ? checkpoint::open_checked_model(path, checking_threads())
                                 : checkpoint::open_model(path);
  if (!options.allow_expanded) {
    for (const auto& file : model) file->refuse_expanded("use --allow-expanded");
  }
  return model;
}

WrittenModel write_model(const checkpoint::WeightFiles& model, const std::string& input,
                         const std::string& folder, const OutputOptions& options) {
  ModelOutput output(model, options);
  require_safe(model, input, folder, output.is_lossless());
  checkpoint::ModelSave save(folder);
  WrittenModel written = output.write_to(save);
  save.commit(written.files, output.checksums());
  return written;
}

WrittenModel write_single_file(const checkpoint::WeightFiles& model, const std::string& path,
                               const OutputOptions& options) {
  if (is_folder(path)) throw UsageError{path + " is a folder; choose another name"};
  const auto is_it = [&](const auto& file) { return real_path(file->path()) == real_path(path); };
  if (model.size() > 1 && std::ranges::any_of(model, is_it)) {
    throw UsageError{path + " is one of the files to be merged; choose another name"};
  }
  return ModelOutput(model, options).write_single(path);
}

void show_written(const WrittenModel& written, const std::string& path) {
  std::printf("Wrote %s (%s, %s) to %s\n", plural(written.files.size(), "file").c_str(),
              plural(written.tensors, "tensor").c_str(), size_text(written.bytes).c_str(),
              printable(path).c_str());
  for (const auto& [name, count] : written.overflows) {
    show_warning(plural(count, "value") + " of '" + name + "'" + (count == 1 ? " was" : " were") +
                 " too large for the new type and became infinite");
  }
}

}  // namespace accelerant::cli
