__attribute__((visibility("default"))) int cuDriverGetVersion(int *v);
int cuDriverGetVersion(int *v)
{
    *v = 13000;
    return 0;
}
