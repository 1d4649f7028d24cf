// Stands in for Gloo's header of this name; see README.md.
#pragma once

namespace gloo::transport {

class Device;

}  // namespace gloo::transport
