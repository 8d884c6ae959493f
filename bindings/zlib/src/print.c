// SPDX-License-Identifier: Apache-2.0 OR MIT
// gzprintf takes `...`, which stable Rust cannot define. The text is formatted into the file's own buffer; as with zlib, a text
// that does not fit into the size set by gzbuffer is not written, and the result is 0.
#include <stdarg.h>
#include <stdio.h>

typedef void *file;
// Returns the size of the room at `*start`, or an error code.
int memlift_z_print_room(file target, char **start);
// Takes the text in the room; returns its length, or an error code.
int memlift_z_print(file target, int bytes);

int memlift_z_gzvprintf(file target, const char *format, va_list values)
{
    char *start;
    int room = memlift_z_print_room(target, &start);
    if (room < 0)
        return room;
    int bytes = vsnprintf(start, (size_t)room, format, values);
    return bytes <= 0 || bytes >= room ? 0 : memlift_z_print(target, bytes);
}

int memlift_z_gzprintf(file target, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int bytes = memlift_z_gzvprintf(target, format, values);
    va_end(values);
    return bytes;
}
