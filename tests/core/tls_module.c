/* A library with a thread-local variable in static TLS, of which late_load.c loads many. */
static _Thread_local int number __attribute__((tls_model("initial-exec"))) = 7;

int module_number(void);

int module_number(void)
{
    return number++;
}
