// The commands of `accelerant`. Each takes its own arguments, from its name on, and returns the
// exit code of the program.
#pragma once

namespace accelerant::cli {

int launch_command(int argc, char** argv);
int test_command(int argc, char** argv);
int env_command(int argc, char** argv);
int estimate_memory_command(int argc, char** argv);
int inspect_command(int argc, char** argv);
int verify_command(int argc, char** argv);
int merge_weights_command(int argc, char** argv);
int convert_command(int argc, char** argv);
int merge_traces_command(int argc, char** argv);

}  // namespace accelerant::cli
