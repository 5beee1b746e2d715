/* The C that stands before cffi's generated code in _core.c. */
#include <hz/params.h>
