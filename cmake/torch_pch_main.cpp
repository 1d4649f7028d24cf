// Exists so that a precompiled header has a target to belong to.
int main() { return 0; }
