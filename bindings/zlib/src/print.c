// SPDX-License-Identifier: Apache-2.0 OR MIT
// gzprintf takes `...`, which stable Rust cannot define. Formats into memory of its own, then writes: so the text may
// be longer than the file's buffer, which zlib refuses.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef void *file;
int memlift_z_write(file target, const char *text, unsigned bytes);

int memlift_z_gzvprintf(file target, const char *format, va_list values)
{
    char near[4096];
    va_list again;
    va_copy(again, values);
    int bytes = vsnprintf(near, sizeof near, format, values);
    if (bytes >= 0 && (size_t)bytes < sizeof near) {
        va_end(again);
        return memlift_z_write(target, near, (unsigned)bytes);
    }
    char *far = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
    int written = 0;
    if (far != NULL && vsnprintf(far, (size_t)bytes + 1, format, again) == bytes)
        written = memlift_z_write(target, far, (unsigned)bytes);
    free(far);
    va_end(again);
    return written;
}

int memlift_z_gzprintf(file target, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int bytes = memlift_z_gzvprintf(target, format, values);
    va_end(values);
    return bytes;
}
