#include "dist/agreement.h"

#include <c10/core/DeviceType.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "accelerant/core/error.h"
#include "core/texts.h"
#include "dist/message.h"
#include "dist/transport.h"

namespace accelerant::dist {
namespace {

using nlohmann::json;

std::string pack(const View& view) {
  json tensors = json::array();
  for (const TensorView& tensor : view.tensors) {
    tensors.push_back({tensor.defined, static_cast<int>(tensor.type),
                       static_cast<int>(tensor.device), tensor.sizes});
  }
  std::string bytes;
  json::to_cbor(json{view.operation, view.call, view.structure, tensors, view.numbers}, bytes);
  return bytes;
}

View unpack(const std::string& bytes) {
  const json packed = json::from_cbor(bytes);
  View view;
  packed.at(0).get_to(view.operation);
  packed.at(1).get_to(view.call);
  packed.at(2).get_to(view.structure);
  for (const json& tensor : packed.at(3)) {
    view.tensors.push_back({.defined = tensor.at(0).get<bool>(),
                            .type = static_cast<at::ScalarType>(tensor.at(1).get<int>()),
                            .device = static_cast<c10::DeviceType>(tensor.at(2).get<int>()),
                            .sizes = tensor.at(3).get<std::vector<int64_t>>()});
  }
  packed.at(4).get_to(view.numbers);
  return view;
}

// "float32[8, 10]", and the device unless it is the CPU.
std::string to_text(const TensorView& tensor) {
  if (!tensor.defined) return "undefined";
  std::string text = c10::str(c10::getDtypeNames(tensor.type).first, shape_text(tensor.sizes));
  if (tensor.device != c10::DeviceType::CPU) {
    text += " on " + c10::DeviceTypeName(tensor.device, /*lower_case=*/true);
  }
  return text;
}

std::string to_text(const View& view) {
  std::string text = c10::str(view.operation, " (call ", view.call, ") ");
  std::size_t next = 0;
  for (const char c : view.structure) {
    if (c == detail::kTensorMark) {
      text += to_text(view.tensors[next++]);
    } else {
      text += c;
    }
  }
  return text;
}

bool is_same_kind(const TensorView& a, const TensorView& b) {
  return a.defined == b.defined && a.type == b.type && a.device == b.device &&
         a.sizes.size() == b.sizes.size();
}

template <class Same>
bool all_same(const std::vector<View>& views, Same&& same) {
  return std::all_of(views.begin(), views.end(),
                     [&](const View& view) { return same(view, views.front()); });
}

// The monitor keeps the name, so it must be the literal, not the copy in the view.
std::vector<View> exchange(const World& world, const char* operation, const View& own) {
  std::vector<View> views;
  for (const std::string& bytes : exchange_messages(world, operation, pack(own))) {
    try {
      views.push_back(unpack(bytes));
    } catch (const json::exception&) {  // not a view: that process exchanges objects
      throw Error(ErrorDetails{.problem = "The processes are not at the same exchange",
                               .expected = own.operation + " on all processes",
                               .got = c10::str("something else on rank ", views.size()),
                               .hint = "set ProcessGroupOptions::debug to see what it is"});
    }
  }
  const bool same_call = all_same(views, [&](const View& a, const View& b) {
    return a.operation == b.operation && (a.call == b.call || !world.is_debug());
  });
  if (!same_call) {
    refuse_views(views, "The processes are not at the same exchange",
                 "the same operations on all processes, in the same order",
                 "look for a branch that only some processes take");
  }
  return views;
}

}  // namespace

void refuse_views(const std::vector<View>& views, const std::string& problem,
                  const std::string& expected, const std::string& hint) {
  std::string got;
  for (std::size_t rank = 0; rank < views.size(); ++rank) {
    got += c10::str("\n  rank ", rank, ": ", to_text(views[rank]));
  }
  throw Error(
      ErrorDetails{.problem = problem, .expected = expected, .got = got + "\n  ", .hint = hint});
}

std::vector<View> exchange_views(const World& world, const char* operation,
                                 const detail::Bundle& data, std::vector<int64_t> numbers) {
  View own{.operation = operation,
           .call = next_call(world),
           .structure = data.structure,
           .numbers = std::move(numbers)};
  for (const at::Tensor& tensor : data.tensors) {
    TensorView& view = own.tensors.emplace_back();
    if (!tensor.defined()) continue;
    view = {.defined = true,
            .type = tensor.scalar_type(),
            .device = tensor.device().type(),
            .sizes = tensor.sizes().vec()};
  }
  std::vector<View> views = exchange(world, operation, own);
  const bool same_kind = all_same(views, [](const View& a, const View& b) {
    return a.structure == b.structure &&
           std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                      is_same_kind);
  });
  if (!same_kind) {
    refuse_views(views, c10::str(operation, " of data that differs between the processes"),
                 "the same structure, types, devices and numbers of dimensions on all processes",
                 "");
  }
  return views;
}

void require_same(const World& world, const char* operation, const detail::Bundle& data,
                  const std::string& hint, std::vector<int64_t> numbers) {
  const auto views = exchange_views(world, operation, data, std::move(numbers));
  if (!all_same(views, [](const View& a, const View& b) { return a.tensors == b.tensors; })) {
    refuse_views(views, c10::str(operation, " of tensors whose shapes differ"),
                 "the same shapes on all processes", hint);
  }
  if (!all_same(views, [](const View& a, const View& b) { return a.numbers == b.numbers; })) {
    refuse_views(views, c10::str(operation, " with different arguments"),
                 "the same arguments on all processes", "");
  }
}

void require_same_in_debug(const World& world, const char* operation) {
  const int64_t call = next_call(world);
  if (world.is_debug()) exchange(world, operation, {.operation = operation, .call = call});
}

}  // namespace accelerant::dist
