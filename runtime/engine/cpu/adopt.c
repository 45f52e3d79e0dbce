/*
 * adopt.c - memory that the program owns becomes memory of the engine, and its own again.
 *
 * All of the work is the arena's: adopted memory has an offset in it, which is how the ranks of a
 * node find each other's buffers, so that no collective needs to know.
 *
 * dp_register() and dp_deregister() come here through the engine's table, on the
 * program's thread.
 */
#include "runtime/engine/cpu/cpu_internal.h"

dp_status_t dp_cpu_adopt(dp_engine_t *self, void *memory, size_t bytes, dp_error_t *error)
{
    const dp_cpu_engine_t *engine = (const dp_cpu_engine_t *)(const void *)self;

    return dp_arena_adopt(engine->arena, memory, bytes, error);
}

dp_status_t dp_cpu_disown(dp_engine_t *self, void *memory)
{
    const dp_cpu_engine_t *engine = (const dp_cpu_engine_t *)(const void *)self;

    return dp_arena_disown(engine->arena, memory);
}
