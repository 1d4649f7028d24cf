#include <cstdio>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/suggestion.h"
#include "cli/weights/checkpoint_list.h"
#include "cli/weights/inspection.h"
#include "cli/weights/tensor_statistics.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "core/texts.h"

namespace accelerant::cli {
namespace {

using nlohmann::json;

struct FoundTensor {
  const InspectedFile* file = nullptr;
  const checkpoint::WeightTensor* tensor = nullptr;
};

void print_json(const json& value) {
  std::puts(value.dump(2, ' ', false, json::error_handler_t::replace).c_str());
}

json to_json(const checkpoint::WeightTensor& tensor) {
  json shown = {{"name", tensor.name},
                {"dtype", tensor.dtype},
                {"shape", tensor.shape},
                {"bytes", tensor.bytes}};
  if (tensor.held_bytes < tensor.bytes) shown["held_bytes"] = tensor.held_bytes;
  return shown;
}

json to_json(const Total& total) {
  return {{"tensors", total.tensors}, {"elements", total.elements}, {"bytes", total.bytes}};
}

json to_json(const InspectedFile& file) {
  json shown = {{"name", file.name}, {"bytes", file.size}, {"in_model", file.in_model}};
  shown["format"] = file.content ? json(file.content->format()) : json();
  if (!file.problem.empty()) shown["problem"] = file.problem;
  if (!file.content) return shown;
  shown["metadata"] = file.content->metadata();
  shown["aliases"] = file.content->aliases();
  shown["tensors"] = json::array();
  for (const checkpoint::WeightTensor& tensor : file.content->tensors()) {
    shown["tensors"].push_back(to_json(tensor));
  }
  shown["values"] = json::object();
  for (const auto& [path, text] : file.content->values()) {
    shown["values"][path] = json::parse(text, nullptr, false);
  }
  return shown;
}

json to_json(const Inspection& found) {
  json shown = {{"kind", found.kind}, {"files", json::array()}, {"totals", to_json(found.total)}};
  for (const InspectedFile& file : found.files) shown["files"].push_back(to_json(file));
  shown["totals"]["by_dtype"] = json::object();
  for (const auto& [dtype, total] : found.by_dtype) {
    shown["totals"]["by_dtype"][dtype] = to_json(total);
  }
  if (found.trained) shown["totals"]["trained"] = to_json(*found.trained);
  if (!found.model_problem.empty()) shown["problem"] = found.model_problem;
  if (found.manifest) {
    shown["manifest"] = {{"good", found.manifest->is_valid()},
                         {"problems", found.manifest->problems},
                         {"notes", found.manifest->notes},
                         {"content", found.manifest->manifest.content}};
  }
  return shown;
}

// "1.2 MB", or "4.3 GB of 4 B" for a view that repeats what the file holds once.
std::string shown_size(const checkpoint::WeightTensor& tensor) {
  const bool is_expanded = tensor.held_bytes < tensor.bytes;
  return size_text(tensor.bytes) + (is_expanded ? " of " + size_text(tensor.held_bytes) : "");
}

void print_file(const InspectedFile& file) {
  std::string line = printable(file.name) + "  " + size_text(file.size);
  if (file.content) {
    line += std::string(", ") + file.content->format() + ", " +
            plural(file.content->tensors().size(), "tensor");
  }
  std::puts(line.c_str());
  if (!file.problem.empty()) {
    std::printf("  cannot be read: %s\n", printable(file.problem).c_str());
  }
  if (!file.content) return;
  Table texts("ll");
  for (const auto& [key, value] : file.content->metadata()) {
    texts.add({printable(key), printable(value)});
  }
  for (const auto& [path, value] : file.content->values()) {
    texts.add({printable(path), printable(value)});
  }
  texts.print("  ");
  if (file.content->tensors().empty()) return;
  Table tensors("lllr");
  tensors.add({"NAME", "DTYPE", "SHAPE", "SIZE"});
  for (const checkpoint::WeightTensor& tensor : file.content->tensors()) {
    tensors.add(
        {printable(tensor.name), tensor.dtype, shape_text(tensor.shape), shown_size(tensor)});
  }
  tensors.print("  ");
  for (const auto& [alias, name] : file.content->aliases()) {
    std::printf("  %s is %s\n", printable(alias).c_str(), printable(name).c_str());
  }
}

void print_manifest(const checkpoint::Verification& found) {
  std::printf("\nManifest: %s, %s\n", plural(found.manifest.files.size(), "file").c_str(),
              found.is_valid() ? "all present with the right sizes" : "DAMAGED");
  Table content("ll");
  for (const auto& [key, value] : found.manifest.content.items()) {
    content.add(
        {printable(key), printable(value.dump(-1, ' ', false, json::error_handler_t::replace))});
  }
  content.print("  ");
  for (const std::string& note : found.notes) std::printf("  note: %s\n", printable(note).c_str());
}

void add_row(Table& table, const std::string& title, const Total& total) {
  table.add({title, plural(total.tensors, "tensor"), plural(total.elements, "element"),
             size_text(total.bytes)});
}

void print_totals(const Inspection& found) {
  std::printf("\nTotal: %s, %s, %s\n", plural(found.total.tensors, "tensor").c_str(),
              plural(found.total.elements, "element").c_str(),
              size_text(found.total.bytes).c_str());
  Table table("lrrr");
  for (const auto& [dtype, total] : found.by_dtype) add_row(table, dtype, total);
  table.print("  ");
  if (!found.trained) return;
  Table parts("lrrr");
  add_row(parts, "parameters in an optimizer", *found.trained);
  add_row(parts, "others, such as buffers",
          {.tensors = found.total.tensors - found.trained->tensors,
           .elements = found.total.elements - found.trained->elements,
           .bytes = found.total.bytes - found.trained->bytes});
  std::puts("Of these:");
  parts.print("  ");
}

void print_all(const Inspection& found) {
  const char* gap = "";
  for (const InspectedFile& file : found.files) {
    std::fputs(gap, stdout);
    gap = "\n";
    print_file(file);
  }
  if (found.total.tensors > 0) print_totals(found);
  if (found.manifest) print_manifest(*found.manifest);
}

FoundTensor find_tensor(const Inspection& found, const std::string& name) {
  std::vector<std::string> names;
  for (const InspectedFile& file : found.files) {
    if (!file.content) continue;
    const auto alias = file.content->aliases().find(name);
    const std::string& stored = alias == file.content->aliases().end() ? name : alias->second;
    for (const checkpoint::WeightTensor& tensor : file.content->tensors()) {
      if (tensor.name == stored) return {&file, &tensor};
      names.push_back(tensor.name);
    }
  }
  const auto nearest = nearest_name(name, names);
  throw UsageError{"no tensor '" + name + "'" +
                   (nearest ? "; did you mean '" + *nearest + "'?" : "")};
}

std::string text_of_number(const json& value) {
  if (value.is_null()) return "none";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return value.dump();
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value.get<double>());
  return text;
}

void print_tensor(const FoundTensor& found, const TensorStatistics& statistics) {
  const checkpoint::WeightTensor& tensor = *found.tensor;
  Table table("ll");
  table.add({"name", printable(tensor.name)});
  table.add({"file", printable(found.file->name)});
  table.add({"dtype", tensor.dtype});
  table.add({"shape", shape_text(tensor.shape)});
  table.add({"elements", count_text(tensor.elements())});
  table.add({"size", size_text(tensor.bytes)});
  if (statistics.is_known) {
    std::string first;
    for (const json& value : statistics.first) {
      first += (first.empty() ? "" : ", ") + text_of_number(value);
    }
    table.add({"min", text_of_number(statistics.min)});
    table.add({"max", text_of_number(statistics.max)});
    table.add({"mean", text_of_number(statistics.mean)});
    table.add({"NaN", count_text(statistics.nan)});
    table.add({"infinite", count_text(statistics.inf)});
    table.add({"first", first + (tensor.elements() > statistics.first.size() ? ", ..." : "")});
  } else {
    table.add({"values", "not shown for this data type"});
  }
  table.print();
}

json tensor_json(const FoundTensor& found, const TensorStatistics& statistics) {
  json shown = to_json(*found.tensor);
  shown["file"] = found.file->name;
  if (!statistics.is_known) return shown;
  shown["min"] = statistics.min;
  shown["max"] = statistics.max;
  shown["mean"] = statistics.mean;
  shown["nan"] = statistics.nan;
  shown["inf"] = statistics.inf;
  shown["first"] = statistics.first;
  return shown;
}

int inspect_project(const CheckpointList& list, const std::string& tensor, bool as_json) {
  if (!tensor.empty()) {
    throw UsageError{"--tensor needs a checkpoint, a model or a file; " + list.folder +
                     " is a folder of checkpoints"};
  }
  if (as_json) {
    print_json(to_json(list));
  } else {
    print(list);
  }
  return list.is_good() ? 0 : kFailure;
}

int inspect_work(const std::string& path, const std::string& tensor, bool as_json,
                 bool allow_expanded) {
  require_path(path);
  if (is_folder(path) && !path_exists(join_path(path, checkpoint::kManifestName))) {
    if (const auto list = list_project(path)) return inspect_project(*list, tensor, as_json);
  }
  const Inspection found = inspect(path);
  if (!tensor.empty()) {
    const FoundTensor one = find_tensor(found, tensor);
    if (!allow_expanded) {
      one.file->content->refuse_expanded(*one.tensor, "use --allow-expanded");
    }
    const TensorStatistics statistics = statistics_of(*one.file->content, *one.tensor);
    if (as_json) {
      print_json(tensor_json(one, statistics));
    } else {
      print_tensor(one, statistics);
    }
    return 0;
  }
  if (as_json) {
    print_json(to_json(found));
  } else {
    print_all(found);
  }
  if (!found.model_problem.empty()) show_error(found.model_problem);
  if (found.manifest) {
    for (const std::string& problem : found.manifest->problems) show_error(problem);
  }
  return found.is_good() ? 0 : kFailure;
}

}  // namespace

int inspect_command(int argc, char** argv) {
  const auto app = make_parser("inspect", "[OPTIONS] PATH",
                               "Shows the checkpoints of a project, or what is in a checkpoint, a "
                               "model or a file of tensors "
                               "(safetensors or torch.save).");
  std::string path;
  std::string tensor;
  bool as_json = false;
  app->add_option(
         "path", path,
         "A project, a folder of checkpoints, a checkpoint, a model folder, the index of a sharded "
         "model, or a file")
      ->required();
  app->add_option("--tensor", tensor, "Show statistics and the first values of one tensor")
      ->option_text("NAME");
  app->add_flag("--json", as_json, "Print JSON");
  bool allow_expanded = false;
  add_allow_expanded(*app, allow_expanded);
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  return inspect_work(path, tensor, as_json, allow_expanded);
}

}  // namespace accelerant::cli
