// Stands in for Gloo's header of this name; see README.md. libtorch needs nothing of it.
#pragma once
