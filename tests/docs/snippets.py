"""Turns the C++ snippets of a documentation page into a program: snippets.py page.md program.cpp

Each snippet becomes a function; the fixture below declares what the page says they assume.
"""

import pathlib
import re
import sys

FIXTURE = """\
// Made from {page}.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

namespace {{

struct Fixture {{
  torch::Device device{{torch::cuda::is_available() ? torch::kCUDA : torch::kCPU}};
  torch::nn::Linear net{{4, 2}};
  torch::nn::Linear other{{4, 2}};
  torch::Tensor x = torch::randn({{8, 4}}, device);
  torch::Tensor y = torch::randn({{8, 2}}, device);
  Fixture() {{
    net->to(device);
    other->to(device);
    other->forward(x).sum().backward();
  }}
}};

"""

SNIPPET = """\
// {page}, line {line}.
void snippet_{number}() {{
  Fixture fixture;
  [[maybe_unused]] auto& [device, net, other, x, y] = fixture;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::optim::SGD other_optimizer(other->parameters(), 0.1);
  accelerant::GradScaler scaler({{.device = device.type()}});
  const auto loss_of = [&](const torch::Tensor& input, const torch::Tensor& target) {{
    const accelerant::AutocastGuard autocast({{device.type(), torch::kHalf}});
    return torch::mse_loss(net->forward(input), target);
  }};
  {{
{code}  }}
}}

"""


def main(page, program):
    text = pathlib.Path(page).read_text()
    name = pathlib.Path(page).name
    parts = [FIXTURE.format(page=name)]
    count = 0
    for match in re.finditer(r"^```cpp\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start(1)].count("\n") + 1
        parts.append(SNIPPET.format(page=name, line=line, number=count, code=match.group(1)))
        count += 1
    calls = "".join(f"  snippet_{number}();\n" for number in range(count))
    parts.append(f"}}  // namespace\n\nint main() {{\n{calls}}}\n")
    pathlib.Path(program).write_text("".join(parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
