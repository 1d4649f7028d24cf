#include "format/torch_globals.h"

#include <string_view>
#include <unordered_map>

namespace accelerant::format {
namespace {

const std::unordered_map<std::string_view, Global>& functions() {
  static const std::unordered_map<std::string_view, Global> table = {
      {"collections.OrderedDict", Global::ordered_dict},
      {"collections.Counter", Global::counter},
      {"builtins.set", Global::set},
      {"builtins.bytearray", Global::bytearray},
      {"builtins.bytes", Global::bytes},
      {"_codecs.encode", Global::encode},
      {"torch.Size", Global::size},
      {"torch.device", Global::device},
      {"torch._utils._rebuild_tensor", Global::rebuild_tensor},
      {"torch._utils._rebuild_tensor_v2", Global::rebuild_tensor_v2},
      {"torch._utils._rebuild_tensor_v3", Global::rebuild_tensor_v3},
      {"torch._utils._rebuild_parameter", Global::rebuild_parameter},
  };
  return table;
}

}  // namespace

std::optional<Node> find_global(const std::string& module, const std::string& name) {
  // Protocol 2 has the names of Python 2.
  const std::string full = (module == "__builtin__" ? "builtins" : module) + "." + name;
  if (const auto found = functions().find(full); found != functions().end()) {
    return GlobalNode{.name = found->second};
  }
  if (full == "torch.storage.UntypedStorage") return GlobalNode{.name = Global::storage_type};
  if (module == "torch") {
    if (const TorchDtype* const dtype = find_storage_type(name)) {
      return GlobalNode{.name = Global::storage_type, .dtype = dtype};
    }
    if (const TorchDtype* const dtype = find_python_dtype(name)) {
      return PlainDtype{.name = std::string(dtype->name)};
    }
  }
  return std::nullopt;
}

std::optional<Node> find_module_global(const std::string& module, const std::string& name) {
  if (module == "__torch__" || module.starts_with("__torch__.")) {
    return GlobalNode{.name = Global::module};
  }
  if (module == "torch.jit._pickle" && name.starts_with("build_") && name.ends_with("list")) {
    return GlobalNode{.name = Global::build_list};
  }
  return std::nullopt;
}

bool is_of_numpy(const std::string& module, const std::string& name) {
  // numpy 2 renamed numpy.core.
  if (module == "numpy._core.multiarray" || module == "numpy.core.multiarray") {
    return name == "_reconstruct" || name == "scalar";
  }
  return module == "numpy.dtypes" || (module == "numpy" && (name == "ndarray" || name == "dtype"));
}

}  // namespace accelerant::format
