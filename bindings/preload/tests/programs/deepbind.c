// SPDX-License-Identifier: Apache-2.0 OR MIT
// A program that opens itself as a library bound to its own dependencies first: what it allocates is freed there. Built as a
// library, it has the function alone; and it maps memory in the middle of the largest arena before anything else runs.
#include "check.h"
#include <dlfcn.h>

void give_back(void *pointer) { free(realloc(pointer, 5000)); }
#ifdef LIBRARY
__attribute__((constructor(101))) static void early(void) {
    mmap((void *)0x210000000000, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
}
#else
int main(int argc, char **argv) {
    CHECK(argc > 1); void *library = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND); CHECK(library);
    void (*give)(void *) = (void (*)(void *))dlsym(library, "give_back"); CHECK(give);
    for (size_t bytes = 1; bytes < 1000000; bytes = bytes * 3 / 2 + 1) give(malloc(bytes));
    puts("right");
    return 0;
}
#endif
