"""All contact with jaxprs: nothing outside of this folder looks into one."""
