/* PID 1 of a Pod: holds its namespaces and reaps what is left to it. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
	signal(SIGINT, stop), signal(SIGTERM, stop), signal(SIGCHLD, reap);
	for (;;) pause();
}
