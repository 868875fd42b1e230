/* A library that is linked with libcuda: where do its own calls go? */
extern int cuMemAlloc_v2(void);
extern int cuMemFreeHost(void);

void *plugin_function(int which);

void *plugin_function(int which)
{
    return which ? (void *)cuMemFreeHost : (void *)cuMemAlloc_v2;
}
