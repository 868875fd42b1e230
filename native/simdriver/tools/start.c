/* The entry point of the programs. The C library's own one asks for __libc_start_main@GLIBC_2.34 when built on a
 * new system, and would keep them out of containers with an older one; the call is the same. These programs have
 * no constructors, so none are passed. */
#if defined(__x86_64__)
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.2.5\n"
        ".text\n"
        ".globl _start\n"
        ".type _start,@function\n"
        "_start:\n"
        "    endbr64\n"
        "    xorl %ebp, %ebp\n"
        "    movq %rdx, %r9\n" /* the loader's exit function */
        "    popq %rsi\n"      /* argc */
        "    movq %rsp, %rdx\n"
        "    andq $-16, %rsp\n"
        "    pushq %rax\n"
        "    pushq %rsp\n"
        "    xorl %r8d, %r8d\n"
        "    xorl %ecx, %ecx\n"
        "    leaq main(%rip), %rdi\n"
        "    call *__libc_start_main@GOTPCREL(%rip)\n"
        "    hlt\n"
        ".size _start, .-_start\n");
#elif defined(__aarch64__)
__asm__(".symver __libc_start_main,__libc_start_main@GLIBC_2.17\n"
        ".text\n"
        ".globl _start\n"
        ".type _start,%function\n"
        "_start:\n"
        "    hint #34\n" /* bti c */
        "    mov x29, #0\n"
        "    mov x30, #0\n"
        "    mov x5, x0\n" /* the loader's exit function */
        "    ldr x1, [sp]\n"
        "    add x2, sp, #8\n"
        "    mov x6, sp\n"
        "    mov x3, #0\n"
        "    mov x4, #0\n"
        "    adrp x0, :got:main\n"
        "    ldr x0, [x0, #:got_lo12:main]\n"
        "    bl __libc_start_main\n"
        "    brk #1\n"
        ".size _start, .-_start\n");
#endif
