/* A library with a thread-local variable in static TLS, of which late_load.c loads many. With
 * TLS_BYTES it is that large, and fills most of a small stack of each thread. */
static _Thread_local int number __attribute__((tls_model("initial-exec"))) = 7;
#ifdef TLS_BYTES
static _Thread_local char large[TLS_BYTES] __attribute__((tls_model("initial-exec"), used));
#endif

int module_number(void);

int module_number(void)
{
    return number++;
}
