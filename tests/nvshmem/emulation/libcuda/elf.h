/* What module.c reads of a cubin, and what for. */
#ifndef ELF_H
#define ELF_H

#include <elf.h>

#define EM_CUDA_ 190
#define STO_ENTRY 0x10        /* st_other of a symbol that is a kernel */
#define ATTRIBUTE_SIZED 4     /* .nv.info: a 16-bit size and as many bytes follow */
#define KPARAM_INFO 0x17      /* of one parameter: its number, offset and size */
#define CBANK_PARAM_SIZE 0x19 /* bytes of all parameters */
#define REQNTID 0x10          /* the block size the kernel was compiled for */
#define MAX_THREADS 0x05      /* its greatest block size */
#define FRAME_SIZE 0x11
#define REGCOUNT 0x2f

static inline const Elf64_Shdr *sections_of(const char *image)
{
    return (const Elf64_Shdr *)(image + ((const Elf64_Ehdr *)image)->e_shoff);
}

#endif
