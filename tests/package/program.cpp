// A C++ program over an installed libdp: its header is C++, too, and its macros fill structs. test_package.sh
// compiles it with pkg-config's flags, and compares what it prints.
#include <dp.h>
#include <cstdio>

int main()
{
    dp_options_t options = DP_OPTIONS_INIT;
    dp_gradients_options_t gradients = DP_GRADIENTS_OPTIONS_INIT;
    dp_context_t *dp = nullptr;
    if (options.reduce != DP_SUM || gradients.accumulation_steps != 1) return 1;
    if (dp_init(nullptr, &dp) != DP_OK) return 1;
    std::printf("%s %d\n", dp_version(), dp_size(dp));
    return dp_finalize(dp) == DP_OK ? 0 : 1;
}
